//go:build !windows

package main

import (
	"encoding/json"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/testkit"
)

// TestTheLabServesAnotherShell starts a lab, sells something in it from outside, and stops it as Ctrl-C does.
func TestTheLabServesAnotherShell(t *testing.T) {
	testkit.Long(t)
	lab := as("dropctl", "lab", "-o", "json", "-q")
	lab.Env = append(lab.Env, "DROPCTL_TRANSPORT=cloudtasks", "DROPCTL_PAYMENT=webhook") // of the operator's real shop
	out, err := lab.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := lab.Start(); err != nil {
		t.Fatal(err)
	}
	watchdog := time.AfterFunc(2*time.Minute, func() { _ = lab.Process.Kill() })
	defer watchdog.Stop()
	defer func() { _ = lab.Process.Kill() }()
	var where struct {
		Redis    string `json:"redis_url"`
		Database string `json:"database_url"`
	}
	if err := json.NewDecoder(out).Decode(&where); err != nil {
		t.Fatal(err)
	}
	shell := func(args ...string) *exec.Cmd {
		cmd := as("dropctl", args...)
		cmd.Env = append(cmd.Env, "DROPCTL_REDIS_URL="+where.Redis, "DROPCTL_DATABASE_URL="+where.Database)
		return cmd
	}
	must := func(args ...string) string {
		t.Helper()
		text, err := shell(args...).Output()
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return strings.TrimSpace(string(text))
	}
	must("seed", "hat", "--stock", "3")
	id := must("reserve", "hat", "--user", "ada", "-o", "name")
	if state := must("confirm", id, "--ack", "ledger", "--timeout", "30s", "--jq", ".state"); state != "confirmed" {
		t.Errorf("the reservation is %s", state)
	}
	if err := lab.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if exit := exitOf(t, lab.Wait()); exit != 130 {
		t.Errorf("exit %d", exit)
	}
	if exit := exitOf(t, shell("lot", "list").Run()); exit != 5 {
		t.Errorf("with the lab gone: exit %d", exit)
	}
}
