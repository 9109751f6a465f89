package lab

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func parsed(t *testing.T, texts ...string) (faults []Fault) {
	t.Helper()
	for _, text := range texts {
		f, err := ParseFault(text)
		must(t, err)
		faults = append(faults, f)
	}
	return faults
}

func TestAScheduleDoesWhatItSaysAndLeavesTheServersRunning(t *testing.T) {
	if testing.Short() {
		t.Skip("takes several seconds; make test runs it")
	}
	t.Parallel()
	redis, err := StartRedis(t.Context(), RedisOptions{})
	must(t, err)
	t.Cleanup(func() { _ = redis.Stop(context.Background()) })
	link, err := StartProxy(redis.Addr())
	must(t, err)
	t.Cleanup(link.Stop)
	worker, err := StartProgram(t.Context(), "its.yaml", "password: secret\n", "/bin/sh", "-c", `cat "$1"; while :; do sleep 1; done`, "sh", "its.yaml")
	must(t, err)
	t.Cleanup(func() { _ = worker.Stop(context.Background()) })
	rig := &Rig{Redis: redis, Worker: worker, RedisLink: link}
	before, workerBefore, startedBefore := redis.PID(), worker.PID(), worker.Started()
	_, err = redis.Do(t.Context(), "SET", "k", "v")
	must(t, err)

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	reports, err := rig.Schedule(ctx, parsed(t, "flush redis at 400ms", "kill redis at 100ms", "pause redis 200ms at 200ms", "kill worker at 0s",
		"restart worker at 10ms", "drop 50% replies for 100ms", "delay replies 5ms for 100ms"), nil)
	must(t, err)
	for _, r := range reports {
		if !r.Done || r.Error != "" {
			t.Errorf("%+v", r)
		}
	}
	if reports[len(reports)-1].Fault != "flush redis at 400ms" {
		t.Errorf("the reports are not in the order of time: %+v", reports)
	}
	if pid := redis.PID(); pid == 0 || pid == before {
		t.Errorf("Redis is process %d, was %d", pid, before)
	}
	if pid := worker.PID(); pid == 0 || pid == workerBefore || startedBefore.IsZero() || !worker.Started().After(startedBefore) {
		t.Errorf("the worker is process %d of %s, was %d of %s", pid, worker.Started(), workerBefore, startedBefore)
	}
	if got, err := redis.Do(t.Context(), "EXISTS", "k"); err != nil || got != "0" {
		t.Errorf("after the flush: %q, %v", got, err)
	}
	if !strings.Contains(worker.Log(), "password: secret") {
		t.Errorf("the program did not find its file: %s", worker.Log())
	}
}

func TestWhatAnEndedScheduleHasBegunIsBroughtToItsEnd(t *testing.T) {
	t.Parallel()
	redis, err := StartRedis(t.Context(), RedisOptions{})
	must(t, err)
	t.Cleanup(func() { _ = redis.Stop(context.Background()) })
	before := redis.PID()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for redis.PID() == before {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	reports, err := (&Rig{Redis: redis}).Schedule(ctx, parsed(t, "kill redis at 0s", "kill redis at 1h"), nil)
	must(t, err)
	if !reports[0].Done || reports[1].Done {
		t.Errorf("%+v", reports)
	}
	if _, err := redis.Do(t.Context(), "PING"); err != nil {
		t.Error(err)
	}
}

func TestAProgramThatEndsByItselfIsStartedAgain(t *testing.T) {
	t.Parallel()
	p, err := StartProgram(t.Context(), "its.yaml", "", "/bin/sh", "-c", "sleep 0.1; echo over; exit 1")
	must(t, err)
	t.Cleanup(func() { _ = p.Stop(context.Background()) })
	for began := time.Now(); strings.Count(p.Log(), "over") < 2; time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Fatalf("its log: %s", p.Log())
		}
	}
	must(t, p.Kill())
	must(t, p.Stop(t.Context()))
	if pid := p.PID(); pid != 0 {
		t.Errorf("it runs as process %d after its end", pid)
	}
}

// echo is a server that answers each line with the same line, behind a proxy. ask sends a line on a connection of its own
// and returns how long the answer took.
func echo(t *testing.T) (link *Proxy, ask func() (time.Duration, error)) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	link, err = StartProxy(l.Addr().String())
	must(t, err)
	t.Cleanup(link.Stop)
	return link, func() (time.Duration, error) {
		conn, err := net.Dial("tcp", link.Addr())
		if err != nil {
			return 0, err
		}
		defer func() { _ = conn.Close() }()
		began := time.Now()
		_ = conn.SetDeadline(began.Add(500 * time.Millisecond))
		if _, err := conn.Write([]byte("hello\n")); err != nil {
			return 0, err
		}
		_, err = bufio.NewReader(conn).ReadString('\n')
		return time.Since(began), err
	}
}

// A fault of the way to a server is felt while it lasts, and no more once it is over.
func TestFaultsOnTheWayHappenAndEnd(t *testing.T) {
	t.Parallel()
	const late = 100 * time.Millisecond
	for text, felt := range map[string]func(took time.Duration, err error) bool{
		"drop 100% replies":        func(_ time.Duration, err error) bool { return errors.Is(err, io.EOF) },
		"delay replies 100ms":      func(took time.Duration, _ error) bool { return took >= late },
		"pause postgres 1h at 0s":  func(_ time.Duration, err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) },
		"drop 50% replies for 24h": func(_ time.Duration, err error) bool { return errors.Is(err, io.EOF) },
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			link, ask := echo(t)
			until := func(what string, want bool) {
				for began := time.Now(); felt(ask()) != want; {
					if time.Since(began) > 20*time.Second {
						t.Fatal(what)
					}
				}
			}
			until("it is felt before", false)
			ctx, end := context.WithCancel(t.Context())
			defer end()
			done := make(chan error, 1)
			go func() { done <- (&Rig{RedisLink: link, PostgresLink: link}).Do(ctx, parsed(t, text)[0]) }()
			until("it is not felt", true)
			end()
			must(t, <-done)
			until("it does not end", false)
		})
	}
}

func TestAFaultThatTheLabCannotDoIsAnError(t *testing.T) {
	for _, text := range []string{"kill worker at 0s", "drop 1% replies", "pause postgres 1s at 0s", "kill redis at 0s"} {
		if err := (&Rig{}).Do(t.Context(), parsed(t, text)[0]); err == nil {
			t.Errorf("%s: no error", text)
		}
	}
}
