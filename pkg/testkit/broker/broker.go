// Package broker runs a Kafka cluster of three brokers as a process of its own, reached over TCP as a real one is, and makes
// it fail on demand. The brokers are franz-go's kfake: its replicas are labels, so it cannot show what a lost replica does.
//
// It is a package apart from testkit so that only the tests that want it carry a broker.
package broker

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// The environment of the process that is the cluster.
const (
	envFolder = "DROPCTL_TEST_BROKER_FOLDER"
	envPorts  = "DROPCTL_TEST_BROKER_PORTS"
	envSecure = "DROPCTL_TEST_BROKER_SECURE"
)

// The user that a secure cluster knows, for each of PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512.
const (
	Username = "dropctl"
	Password = "correct horse"
)

const brokers = 3

// Broker is a cluster. Its methods fail the test.
type Broker struct {
	t      testing.TB
	folder string
	ports  []string
	secure bool

	mu      sync.Mutex
	process *exec.Cmd // nil: it is down
	words   io.WriteCloser
	answers *bufio.Reader
}

// Start runs a cluster until the test ends. What it has confirmed outlives Kill. TestMain must call Main first.
func Start(t testing.TB) *Broker { return start(t, false) }

// StartSecure runs a cluster that speaks TLS only, with a certificate that CAFile vouches for, and wants a user.
func StartSecure(t testing.TB) *Broker { return start(t, true) }

func start(t testing.TB, secure bool) *Broker {
	t.Helper()
	b := &Broker{t: t, folder: t.TempDir(), secure: secure, ports: freePorts(t)}
	t.Cleanup(b.Kill)
	b.Restart()
	return b
}

// freePorts are chosen once, so that the cluster comes back where it was.
func freePorts(t testing.TB) []string {
	var ports []string
	for range brokers {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = ln.Close() }()
		ports = append(ports, strconv.Itoa(ln.Addr().(*net.TCPAddr).Port))
	}
	return ports
}

// Addrs returns every broker's host:port.
func (b *Broker) Addrs() []string {
	var addrs []string
	for _, port := range b.ports {
		addrs = append(addrs, "127.0.0.1:"+port)
	}
	return addrs
}

// CAFile returns the certificate that vouches for a secure cluster.
func (b *Broker) CAFile() string { return filepath.Join(b.folder, caName) }

// TLS trusts a secure cluster.
func (b *Broker) TLS() *tls.Config {
	b.t.Helper()
	vouches, err := os.ReadFile(b.CAFile())
	if err != nil {
		b.t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(vouches)
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
}

// Kill kills the whole cluster at once; it may be down already.
func (b *Broker) Kill() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.process == nil {
		return
	}
	_ = b.process.Process.Kill()
	_ = b.process.Wait()
	_ = b.words.Close()
	b.process = nil
}

// Restart starts the cluster again where it was, with everything it had confirmed.
func (b *Broker) Restart() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	p := exec.Command(os.Args[0])
	p.Env = append(os.Environ(), envFolder+"="+b.folder, envPorts+"="+strings.Join(b.ports, ","))
	if b.secure {
		p.Env = append(p.Env, envSecure+"=1")
	}
	p.Stderr = os.Stderr
	words, err := p.StdinPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	answers, err := p.StdoutPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		b.t.Fatal(err)
	}
	b.process, b.words, b.answers = p, words, bufio.NewReader(answers)
	b.answer("start")
}

// LoseAcks lets the cluster take the next n produce requests, and break the connection instead of saying so.
func (b *Broker) LoseAcks(n int) { b.t.Helper(); b.say("lose-acks %d", n) }

// AcksLost returns how many of them it has lost so far.
func (b *Broker) AcksLost() int {
	b.t.Helper()
	n, err := strconv.Atoi(b.say("acks-lost"))
	if err != nil {
		b.t.Fatal(err)
	}
	return n
}

// RefuseCommits lets the cluster refuse the next n commits of offsets.
func (b *Broker) RefuseCommits(n int) { b.t.Helper(); b.say("refuse-commits %d", n) }

// ShuffleLeaders gives every partition another leader, and every group another coordinator.
func (b *Broker) ShuffleLeaders() { b.t.Helper(); b.say("shuffle") }

// say gives the cluster a word and returns its answer.
func (b *Broker) say(format string, args ...any) string {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.process == nil {
		b.t.Fatalf("the cluster is down")
	}
	word := fmt.Sprintf(format, args...)
	if _, err := io.WriteString(b.words, word+"\n"); err != nil {
		b.t.Fatal(err)
	}
	return b.answer(word)
}

func (b *Broker) answer(word string) string {
	b.t.Helper()
	stuck := time.AfterFunc(time.Minute, func() { _ = b.process.Process.Kill() })
	defer stuck.Stop()
	line, err := b.answers.ReadString('\n')
	text, ok := strings.CutPrefix(strings.TrimSpace(line), "ok")
	if err != nil || !ok {
		b.t.Fatalf("%s: the cluster said %q: %v", word, line, err)
	}
	return strings.TrimSpace(text)
}
