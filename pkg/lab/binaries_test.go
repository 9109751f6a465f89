//go:build unix

package lab

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dropctl/dropctl/pkg/fault"
)

// fakeProgram puts a shell script into the folder.
func fakeProgram(t *testing.T, folder, name, script string) string {
	t.Helper()
	path := filepath.Join(folder, name)
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFindChoosesWhatIsNewEnough(t *testing.T) {
	inPath, elsewhere := t.TempDir(), t.TempDir()
	t.Setenv("PATH", "relative:"+inPath)
	p := redisProduct
	p.places = []string{filepath.Join(elsewhere, "*")}

	old := fakeProgram(t, inPath, "redis-server", `echo "Redis server v=6.2.14 sha=0"`)
	_, err := p.find(t.Context())
	if !fault.Is(err, fault.MissingBinary) {
		t.Fatalf("got %v", err)
	}
	mustContain(t, err.Error(), "Redis 7.0 or newer is needed", old+" is version 6.2")

	for _, v := range []string{"7.2.1", "8.0.0", "6.9.9"} {
		folder := filepath.Join(elsewhere, v)
		if err := os.Mkdir(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		fakeProgram(t, folder, "redis-server", `echo "Redis server v=`+v+` sha=0"`)
	}
	if got, err := p.find(t.Context()); err != nil || got != filepath.Join(elsewhere, "8.0.0", "redis-server") {
		t.Errorf("outside PATH it chooses %s, %v", got, err)
	}

	valkey := fakeProgram(t, inPath, "valkey-server", `echo "Valkey server v=8.1.1 sha=0"`)
	if got, err := p.find(t.Context()); err != nil || got != valkey {
		t.Errorf("in PATH it chooses %s, %v", got, err)
	}
}

func TestFindSaysHowToInstall(t *testing.T) {
	for manager, want := range map[string]string{
		"apt-get": "apt-get install -y postgresql",
		"dnf":     "dnf install -y postgresql-server",
		"apk":     "apk add postgresql",
		"brew":    "brew install postgresql@17",
	} {
		folder := t.TempDir()
		t.Setenv("PATH", folder)
		fakeProgram(t, folder, manager, "exit 1")
		p := postgresProduct
		p.places = nil
		_, err := p.find(t.Context())
		if !fault.Is(err, fault.MissingBinary) {
			t.Fatalf("got %v", err)
		}
		mustContain(t, err.Error(), "PostgreSQL 15.0 or newer is needed: no postgres is installed")
		mustContain(t, fault.HintOf(err), want)
		if sudo := strings.Contains(fault.HintOf(err), "sudo"); sudo != (os.Geteuid() != 0 && manager != "brew") {
			t.Errorf("hint %q", fault.HintOf(err))
		}
	}
}

func TestFindSurvivesBrokenPrograms(t *testing.T) {
	folder := t.TempDir()
	t.Setenv("PATH", folder)
	p := postgresProduct
	p.places = nil
	for script, want := range map[string]string{
		"exit 3":        "exit status 3",
		"echo whatever": "unknown output of --version",
	} {
		fakeProgram(t, folder, "postgres", script)
		_, err := p.find(t.Context())
		if !fault.Is(err, fault.MissingBinary) {
			t.Fatalf("got %v", err)
		}
		mustContain(t, err.Error(), want)
	}
}

func TestVersionOf(t *testing.T) {
	folder := t.TempDir()
	for output, want := range map[string]version{
		"postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)": {15, 18},
		"postgres (PostgreSQL) 19beta1":                        {19, 0},
		"Redis server v=7.0.15 sha=00000000:0 bits=64":         {7, 0},
		"Valkey server v=8.1.1 sha=00000000:0":                 {8, 1},
	} {
		got, err := versionOf(t.Context(), fakeProgram(t, folder, "server", "echo '"+output+"'"))
		if err != nil || got != want {
			t.Errorf("%q is version %v, %v; want %v", output, got, err, want)
		}
	}
}

func TestHomeAvoidsUnfitFolders(t *testing.T) {
	long := filepath.Join(t.TempDir(), strings.Repeat("long", 20))
	if err := os.Mkdir(long, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", long)
	h, err := newHome(nil)
	if err != nil {
		t.Fatal(err)
	}
	h.remove()
	if strings.HasPrefix(h.dir, long) {
		t.Errorf("%s is too long for a socket", h.dir)
	}

	owner, err := unprivileged()
	if err != nil {
		t.Fatal(err)
	}
	if owner == nil {
		return // only root starts servers as somebody else
	}
	closed, err := os.MkdirTemp("/tmp", "closed-")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(closed) }()
	t.Setenv("TMPDIR", closed)
	h, err = newHome(owner)
	if err != nil {
		t.Fatal(err)
	}
	h.remove()
	if strings.HasPrefix(h.dir, closed) {
		t.Errorf("user %s cannot enter %s", owner.name, h.dir)
	}
}
