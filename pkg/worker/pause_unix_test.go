//go:build unix

package worker_test

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/testkit"
)

// Two workers, one of which is stopped while Redis is replaced, and goes on when all is over.
func TestAWorkerThatWasPausedChangesNothingAfterwards(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s, replica, failOver := newReplicatedShop(t)
	s.load(t, "truffle", 100_000)
	var workers [2]*exec.Cmd
	for i := range workers {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), envRedis+"="+s.redisURL, envDatabase+"="+s.databaseURL)
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}()
		workers[i] = cmd
	}
	buyers := s.buyers(t, "truffle")
	buyers.awaitAccepted(t, 100, 10*time.Second)
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		alive := s.sql(t, `SELECT count(*) FROM workers`)
		return alive == "2", alive + " workers"
	})
	if err := workers[0].Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := replica.CutReplication(t.Context(), s.redis); err != nil {
		t.Fatal(err)
	}
	buyers.awaitAccepted(t, 50, 10*time.Second)
	failOver()
	buyers.awaitAccepted(t, 50, 40*time.Second)
	epoch := s.watermark(t, "truffle").Epoch
	if err := workers[0].Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	buyers.awaitAccepted(t, 300, 20*time.Second)
	buyers.stop()
	s.agreesWithin(t, 20*time.Second)
	s.nothingTwice(t)
	if at := s.watermark(t, "truffle"); at.Epoch != max(epoch, 2) {
		t.Errorf("the paused worker began epoch %d behind %d", at.Epoch, epoch)
	}
}
