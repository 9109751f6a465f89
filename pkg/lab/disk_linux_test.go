package lab

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/dropctl/dropctl/pkg/fault"
)

func TestDiskSaysWhatItNeeds(t *testing.T) {
	program, err := redisProduct.find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	if err := os.Symlink(program, filepath.Join(folder, "redis-server")); err != nil {
		t.Fatal(err)
	}
	fakeProgram(t, folder, "unshare", "echo 'unshare: unshare failed: Operation not permitted' >&2; exit 1")
	t.Setenv("PATH", folder)
	_, err = StartRedis(t.Context(), RedisOptions{DiskSize: 4 << 20})
	if !fault.Is(err, fault.Unavailable) {
		t.Fatalf("got %v", err)
	}
	mustContain(t, err.Error(), "the right to make user and mount namespaces", "Operation not permitted")
	mustContain(t, fault.HintOf(err), "user.max_user_namespaces")
}

func TestDiskEndsWithItsServer(t *testing.T) {
	t.Parallel()
	r, err := StartRedis(t.Context(), RedisOptions{DiskSize: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	holder := r.disk.PID()
	if err := r.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(r.disk.Dir()); !os.IsNotExist(err) || processExists(holder) {
		t.Errorf("the disk is still there: %v", err)
	}
}
