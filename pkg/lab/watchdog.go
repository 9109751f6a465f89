package lab

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
)

// watchdogScript is the parent of one server process. It reads one word a line from our pipe and answers
// each with a line. When the pipe ends, we are gone, however that came about: it ends the server and
// removes the folder. Being the server's parent it can never signal a stranger that got the same pid.
//
// Descriptor 3 is held by the server and its children only, so we see it close when the last of them ends.
// Signals are ignored only after the server was started, which would inherit that.
const watchdogScript = `
folder=$1 farewell=$2; shift 2
"$@" </dev/null >>"$folder/` + logName + `" 2>&1 &
server=$!
trap '' HUP INT TERM PIPE
exec 3>&-
echo "$server"
while read -r word; do
	case $word in
	reap)  wait "$server"; echo "$?"; server= ;;
	leave) exit 0 ;;
	*)     kill -s "$word" "$server" 2>/dev/null; echo "$?" ;;
	esac
done
if [ -n "$server" ]; then
	kill -s "$farewell" "$server"
	kill -s CONT "$server"
	{ for second in 1 2 3 4 5 6 7 8 9 10; do sleep 1; done; kill -s KILL "$server"; } &
	wait "$server"
	kill -s KILL "$!"
fi 2>/dev/null
for attempt in 1 2 3 4 5; do
	rm -rf "$folder" && exit 0
	sleep 1
done
`

// watchdog is our end of one run of the script. It is safe for concurrent use.
type watchdog struct {
	shell   *exec.Cmd
	pid     int           // of the server
	exited  chan struct{} // closed when the server and all its children are gone and reaped
	status  int           // exit status of the server, valid once exited is closed
	mu      sync.Mutex    // one question at a time
	ask     io.WriteCloser
	answers *bufio.Reader
}

// watch starts the command under a new watchdog, as the folder's owner. farewell is the signal that ends
// the server when we are gone.
func watch(h *home, farewell string, command ...string) (*watchdog, error) {
	alive, held, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = held.Close() }()

	shell := exec.Command("/bin/sh", append([]string{"-c", watchdogScript, "watchdog", h.dir, farewell}, command...)...)
	shell.Dir = h.dir
	shell.Env = cleanEnv()
	shell.ExtraFiles = []*os.File{held}
	shell.SysProcAttr = detached(h.owner) // Ctrl-C in a terminal must reach us, not the servers
	w := &watchdog{shell: shell, exited: make(chan struct{})}
	out, err := shell.StdoutPipe()
	if err == nil {
		w.answers = bufio.NewReader(out)
		w.ask, err = shell.StdinPipe()
	}
	if err == nil {
		err = shell.Start()
	}
	if err != nil {
		_ = alive.Close()
		return nil, fmt.Errorf("starting the watchdog: %w", err)
	}
	if w.pid, err = w.answer(); err != nil {
		_ = alive.Close()
		w.close()
		return nil, fmt.Errorf("the watchdog did not start: %w", err)
	}
	_ = held.Close()
	go w.awaitExit(alive)
	return w, nil
}

func (w *watchdog) awaitExit(alive *os.File) {
	defer close(w.exited)
	_, _ = io.Copy(io.Discard, alive)
	_ = alive.Close()
	status, err := w.do("reap")
	if err != nil {
		status = -1 // the watchdog itself was killed; the server is gone all the same
	}
	w.status = status
}

// signal sends the signal of that name ("TERM", "STOP", …) to the server and returns when it was sent.
func (w *watchdog) signal(name string) error {
	select {
	case <-w.exited:
		return errors.New("the server is not running")
	default:
	}
	status, err := w.do(name)
	if err == nil && status != 0 {
		err = errors.New("the server is not running")
	}
	return err
}

// leave ends the watchdog of an ended server and keeps the folder.
func (w *watchdog) leave() {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, _ = io.WriteString(w.ask, "leave\n")
	_ = w.ask.Close()
	_ = w.shell.Wait()
}

// close ends the server if it still runs, removes the folder and ends the watchdog.
func (w *watchdog) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.ask.Close()
	_ = w.shell.Wait()
}

func (w *watchdog) do(word string) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, err := io.WriteString(w.ask, word+"\n"); err != nil {
		return 0, err
	}
	return w.answer()
}

func (w *watchdog) answer() (int, error) {
	line, err := w.answers.ReadString('\n')
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(line))
}
