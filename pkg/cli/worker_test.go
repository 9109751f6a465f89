package cli

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/testkit/stores"
)

func TestWorkerAndStatusAgainstRealServers(t *testing.T) {
	redis, db := testkit.Redis(t), stores.Database(t, 4)
	env := map[string]string{"DROPCTL_REDIS_URL": redis.SocketURL(), "DROPCTL_DATABASE_URL": db.URL(lab.App), "DROPCTL_TIMEOUT": "3s"}
	expect := func(exit int, stdout string, args ...string) result {
		t.Helper()
		start := time.Now()
		r := run(t, env, args...)
		if r.exit != exit || !strings.Contains(r.out, stdout) {
			t.Fatalf("%v: exit %d, want %d\n%s%s", args, r.exit, exit, r.out, r.err)
		}
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("%v took %s", args, took)
		}
		return r
	}
	expect(0, "no lots yet", "status")
	expect(0, "created", "seed", "truffle-99", "--stock", "40")
	expect(6, "there is work for one", "status")

	r := expect(0, `"entries": 1`, "worker", "--until-idle", "-q", "-o", "json")
	if r.err != "" {
		t.Errorf("a quiet worker says %q", r.err)
	}
	key, err := redis.Do(t.Context(), "KEYS", "*outbox")
	if err != nil {
		t.Fatal(err)
	}
	for outbox := range strings.Lines(key) { // one that is no entry of ours, in every stream there is
		if _, err := redis.Do(t.Context(), "XADD", strings.TrimSpace(outbox), "*", "what", "ever"); err != nil {
			t.Fatal(err)
		}
	}
	r = expect(8, "", "worker", "--until-idle", "-q")
	if !strings.Contains(r.err, "dropctl status") {
		t.Errorf("it names no next command: %s", r.err)
	}
	expect(6, "dead letters: ", "status")

	if err := redis.Kill(); err != nil {
		t.Fatal(err)
	}
	r = expect(5, "", "status", "-o", "json")
	var v struct {
		Verdict string
		Lots    map[string]*int
		Outbox  *struct{}
		Dead    int `json:"dead_letters"`
	}
	if err := json.Unmarshal([]byte(r.out), &v); err != nil || v.Verdict != "bad" || *v.Lots["unknown"] != 1 || v.Lots["selling"] != nil || v.Outbox != nil || v.Dead == 0 {
		t.Errorf("%+v %v in %s", v, err, r.out)
	}
	delete(env, "DROPCTL_REDIS_URL")
	if r := expect(5, "no Redis is named", "status"); !strings.Contains(r.out, "dead letters: ") || !strings.Contains(r.err, "--redis-url") {
		t.Errorf("without Redis' address:\n%s%s", r.out, r.err)
	}
	delete(env, "DROPCTL_DATABASE_URL")
	expect(2, "", "status")
	expect(2, "", "worker")
	expect(2, "", "worker", "--only", "nonsense")
	expect(2, "", "worker", "--transport", "pigeon")
	if r := expect(2, "", "worker", "--only", "apply"); !strings.Contains(r.err, "read from no queue") {
		t.Errorf("apply without a queue: %s", r.err)
	}
	if r := expect(2, "", "worker", "--transport", "kafka"); !strings.Contains(r.err, "--kafka-brokers") {
		t.Errorf("kafka without brokers: %s", r.err)
	}
	if r := expect(2, "", "worker", "--transport", "cloudtasks"); !strings.Contains(r.err, "--tasks-queue") {
		t.Errorf("without a task queue:\n%s", r.err)
	}
	if r := expect(2, "", "serve", "--transport", "cloudtasks"); !strings.Contains(r.err, "--tasks-service-account") {
		t.Errorf("without anybody to trust:\n%s", r.err)
	}
	expect(2, "", "status", "--watch=10ms")
}

// PostgreSQL may fall silent after its first answer: the lots are Redis' then.
func TestStatusShowsLotsThatPostgreSQLDoesNotName(t *testing.T) {
	redis, db, env := emptyShop(t, 4)
	env["DROPCTL_REDIS_URL"] = redis.URL()
	if r := run(t, env, "seed", "hat", "--stock", "1"); r.exit != 0 {
		t.Fatal(r.err)
	}
	db.SQL(t, "REVOKE SELECT ON lots FROM "+string(lab.App))
	if r := run(t, env, "status", "--jq", ".lots.selling"); r.exit != 5 && r.exit != 6 && r.exit != 1 || r.out != "1\n" {
		t.Errorf("exit %d, %s%s", r.exit, r.out, r.err)
	}
}
