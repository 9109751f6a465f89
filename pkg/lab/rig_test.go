package lab

import (
	"context"
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
	before, workerBefore := redis.PID(), worker.PID()
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
	if pid := worker.PID(); pid == 0 || pid == workerBefore {
		t.Errorf("the worker is process %d, was %d", pid, workerBefore)
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

func TestAFaultThatTheLabCannotDoIsAnError(t *testing.T) {
	for _, text := range []string{"kill worker at 0s", "drop 1% replies", "pause postgres 1s at 0s", "kill redis at 0s"} {
		if err := (&Rig{}).Do(t.Context(), parsed(t, text)[0]); err == nil {
			t.Errorf("%s: no error", text)
		}
	}
}
