package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/doctor"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/testkit/stores"
	"github.com/dropctl/dropctl/pkg/worker"
)

// clinic is a private shop that doctor looks at.
type clinic struct {
	redis *lab.Redis
	db    testkit.Database
	env   map[string]string
}

func newClinic(t *testing.T) clinic {
	t.Helper()
	var c clinic
	c.redis, c.db, c.env = emptyShop(t, 4)
	c.env["DROPCTL_TIMEOUT"] = "5s"
	return c
}

func (c clinic) do(t *testing.T, args ...string) {
	t.Helper()
	if _, err := c.redis.Do(t.Context(), args...); err != nil {
		t.Fatal(err)
	}
}

// pretendWorkers lets the ledger see a worker that does everything.
func (c clinic) pretendWorkers(t *testing.T) {
	t.Helper()
	l, err := ledger.Open(t.Context(), ledger.Options{URL: c.db.URL(lab.App)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	w := ledger.Worker{Name: "w", Host: "h", PID: 1, Version: thisVersion().Version, Started: time.Now()}
	for _, part := range worker.PartsOf(false) {
		w.Parts = append(w.Parts, string(part))
	}
	if _, err := l.Heartbeat(t.Context(), w); err != nil {
		t.Fatal(err)
	}
}

type doctorLine struct {
	Result   doctor.Result
	Attested bool
	Check    string
	Store    string
	Target   string
	What     string
	Fix      string
}

type doctorReport struct {
	Verdict doctor.Result
	Checks  []doctorLine
}

// ask runs doctor and returns what it says. Nothing of it may hold a password.
func (c clinic) ask(t *testing.T, exit int, args ...string) doctorReport {
	t.Helper()
	r := run(t, c.env, append([]string{"doctor", "-o", "json"}, args...)...)
	var report doctorReport
	if err := json.Unmarshal([]byte(r.out), &report); err != nil || r.exit != exit {
		t.Fatalf("%v: exit %d, want %d, %v\n%s%s", args, r.exit, exit, err, r.out, r.err)
	}
	for _, url := range c.env {
		if _, rest, ok := strings.Cut(url, "://"); ok {
			user, _, _ := strings.Cut(rest, "@")
			if _, password, ok := strings.Cut(user, ":"); ok && strings.Contains(rest, "@") && password != "" && strings.Contains(r.out+r.err, password) {
				t.Errorf("%v: the output holds a password", args)
			}
		}
	}
	return report
}

// line returns the line of a check; store "" stands for the only one.
func (r doctorReport) line(t *testing.T, store, check string) doctorLine {
	t.Helper()
	i := slices.IndexFunc(r.Checks, func(l doctorLine) bool { return l.Check == check && (store == "" || l.Store == store) })
	if i < 0 {
		t.Fatalf("no line %s of %s in %+v", check, store, r.Checks)
	}
	return r.Checks[i]
}

func TestDoctorFindsNothingInAHealthyShop(t *testing.T) {
	c := newClinic(t)
	c.pretendWorkers(t)
	if r := run(t, c.env, "seed", "hat", "--stock", "5"); r.exit != 0 {
		t.Fatal(r.err)
	}
	report := c.ask(t, 0)
	if report.Verdict != doctor.OK || len(report.Checks) != 38 {
		t.Errorf("%s, %d lines: %+v", report.Verdict, len(report.Checks), report.Checks)
	}
	for _, l := range report.Checks {
		if l.Result != doctor.OK {
			t.Errorf("%+v", l)
		}
	}
	if l := c.ask(t, 6, "--profile", "production").line(t, "", "standby"); l.Result != doctor.Fail { // the test's server does not sync
		t.Errorf("%+v", l)
	}
	if r := run(t, c.env, "doctor"); r.exit != 0 || !strings.Contains(r.out, "VERDICT\tok") || !strings.Contains(r.out, "\neviction") && !strings.Contains(r.out, "\tnoeviction\t") {
		t.Errorf("exit %d\n%s%s", r.exit, r.out, r.err)
	}
	if r := run(t, c.env, "doctor", "--only", "redis", "-o", "none"); r.exit != 0 || r.out+r.err != "" {
		t.Errorf("exit %d\n%s%s", r.exit, r.out, r.err)
	}
	for _, store := range []string{"redis", "postgres"} {
		for _, l := range c.ask(t, 0, "--only", store).Checks {
			if l.Store != store && l.Check != "clocks" {
				t.Errorf("--only %s says %+v", store, l)
			}
		}
	}
}

// TestDoctorFindsWhatIsPlanted plants one fault after the other and takes each away again.
func TestDoctorFindsWhatIsPlanted(t *testing.T) {
	testkit.Long(t)
	c := newClinic(t)
	c.pretendWorkers(t)
	if r := run(t, c.env, "seed", "hat", "--stock", "5"); r.exit != 0 {
		t.Fatal(r.err)
	}
	meta, err := c.redis.Do(t.Context(), "KEYS", "*:meta")
	if err != nil {
		t.Fatal(err)
	}
	due := strings.TrimSuffix(meta, "meta") + "due"
	owner, err := c.redis.Do(t.Context(), "HGET", meta, "owner")
	if err != nil {
		t.Fatal(err)
	}
	id, _, _ := strings.Cut(owner, "/")
	set := func(name, value string) func() { return func() { c.do(t, "CONFIG", "SET", name, value) } }
	field := func(name, value string) func() { return func() { c.do(t, "HSET", meta, name, value) } }
	sql := func(text string) func() { return func() { c.db.SQL(t, text) } }
	as := func(role lab.Role) func() { return func() { c.env["DROPCTL_DATABASE_URL"] = c.db.URL(role) } }
	for _, f := range []struct {
		name        string
		plant, undo func()
		store       string
		check       string
		want        doctor.Result
		say         string
	}{
		{"eviction", set("maxmemory-policy", "allkeys-lru"), set("maxmemory-policy", "noeviction"), "redis", "eviction", doctor.Fail, "allkeys-lru"},
		{"no append-only file", set("appendonly", "no"), set("appendonly", "yes"), "redis", "aof", doctor.Warn, "no append-only file"},
		{"an empty start", set("appendonly", "no"), set("appendonly", "yes"), "redis", "restart", doctor.Warn, "comes back empty"},
		{"never synced", set("appendfsync", "no"), set("appendfsync", "everysec"), "redis", "aof", doctor.Warn, "appendfsync no"},
		{"full", set("maxmemory", "1mb"), set("maxmemory", "0"), "redis", "memory", doctor.Fail, "1.0MiB"},
		{"too few replicas", set("min-replicas-to-write", "1"), set("min-replicas-to-write", "0"), "redis", "min-replicas", doctor.Fail, "NOREPLICAS"},
		{"closed door", field("run", "another"), func() { c.do(t, "HSET", meta, "run", c.runID(t)) }, "redis", "doors", doctor.Fail, "closed_door"},
		{"frozen", field("frozen", "operator"), field("frozen", ""), "redis", "frozen-lots", doctor.Fail, "hat (operator)"},
		{"foreign owner", field("owner", "another/4"), field("owner", owner), "both", "installation", doctor.Fail, "another installation"},
		{"another P", field("owner", id+"/8"), field("owner", owner), "both", "installation", doctor.Fail, "one of 8"},
		{"a trigger", sql("DROP TRIGGER append_only ON order_ledger_3"),
			sql("CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON order_ledger_3 FOR EACH STATEMENT EXECUTE FUNCTION refuse_change(); ALTER TABLE order_ledger_3 ENABLE ALWAYS TRIGGER append_only"),
			"postgres", "triggers", doctor.Fail, "order_ledger_3"},
		{"a role without rights", sql("REVOKE ALL ON ALL TABLES IN SCHEMA public FROM dropctl_app"),
			sql("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO dropctl_app; REVOKE UPDATE, DELETE ON reservation_events, order_ledger FROM dropctl_app"),
			"postgres", "grants", doctor.Fail, "dropctl_app lacks"},
		{"a foreign key", func() { c.do(t, "SET", due, "x") }, func() { c.do(t, "DEL", due) }, "redis", "keys", doctor.Fail, due + " is a string, not a sorted set"},
		{"the owner's role", as(lab.Owner), as(lab.App), "postgres", "rights", doctor.Warn, "dropctl_owner owns"},
		{"a pending migration", sql("UPDATE dropctl_migrations SET version_id = 999 WHERE version_id = 4"), sql("UPDATE dropctl_migrations SET version_id = 4 WHERE version_id = 999"),
			"postgres", "migrations", doctor.Fail, "00004"},
		{"a stopped lot", sql("UPDATE lots SET stopped = 'fork', stopped_at = now()"), sql("UPDATE lots SET stopped = '', stopped_at = NULL"), "postgres", "stopped-lots", doctor.Fail, "hat (fork)"},
		{"a dead letter", sql("INSERT INTO dead_letters (digest, lot, epoch, seq, code, reason, line) VALUES ('x', 'hat', 1, 1, 'fork', '', '')"), sql("DELETE FROM dead_letters"),
			"postgres", "dead-letters", doctor.Fail, "1 event"},
		{"other limits", sql("INSERT INTO workers (worker, host, pid, parts, version, started_at, seen_at, rate) VALUES ('slow', 'h', 1, '{relay}', '', now(), now(), 500), ('fast', 'h', 2, '{relay}', '', now(), now(), 900)"),
			sql("DELETE FROM workers WHERE rate > 0"), "postgres", "throttle", doctor.Warn, "500 to 900"},
		{"no worker", sql("UPDATE workers SET seen_at = now() - interval '1 hour'"), sql("UPDATE workers SET seen_at = now()"), "postgres", "workers", doctor.Warn, "no worker"},
		{"an emptied Redis", func() { c.db.SQL(t, "UPDATE lots SET seen = true"); c.do(t, "FLUSHALL") }, func() {}, "both", "installation", doctor.Fail, "no data"},
	} {
		f.plant()
		exit := 0
		if f.want == doctor.Fail {
			exit = 6
		}
		report := c.ask(t, exit)
		if l := report.line(t, f.store, f.check); l.Result != f.want || !strings.Contains(l.What, f.say) || l.Fix == "" {
			t.Errorf("%s: %+v", f.name, l)
		}
		if report.Checks[0].Result != report.Verdict {
			t.Errorf("%s: the worst line is not the first: %+v", f.name, report.Checks[0])
		}
		f.undo()
	}
}

func (c clinic) runID(t *testing.T) string {
	t.Helper()
	info, err := c.redis.Do(t.Context(), "INFO", "server")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(info, "run_id:")
	id, _, _ := strings.Cut(rest, "\r")
	return id
}

// TestDoctorBelievesWhatIsAttested looks at a Redis that forbids CONFIG, as managed ones do.
func TestDoctorBelievesWhatIsAttested(t *testing.T) {
	testkit.Long(t)
	c := newClinic(t)
	c.do(t, "ACL", "SETUSER", "shop", "on", ">hush", "~drop:*", "&*", "+@all", "-config")
	c.env["DROPCTL_REDIS_URL"] = "redis://shop:hush@" + c.redis.Addr()
	if r := run(t, c.env, "seed", "hat", "--stock", "5"); r.exit != 0 {
		t.Fatal(r.err)
	}
	report := c.ask(t, 0)
	for _, check := range []string{"aof", "min-replicas", "notifications"} {
		if l := report.line(t, "redis", check); l.Result != doctor.Unknown || !strings.Contains(l.Fix, "attest: {redis-") {
			t.Errorf("%+v", l)
		}
	}
	if r := run(t, c.env, "lot", "open", "hat"); r.exit != 0 {
		t.Errorf("what is unknown blocks: exit %d, %s", r.exit, r.err)
	}
	path := filepath.Join(t.TempDir(), "dropctl.yaml")
	if err := os.WriteFile(path, []byte("attest:\n  redis-appendfsync: always\n  redis-min-replicas-to-write: 0\n  redis-notify-keyspace-events: Ex\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	report = c.ask(t, 0, "--config", path)
	for _, check := range []string{"aof", "min-replicas", "notifications"} {
		if l := report.line(t, "redis", check); l.Result != doctor.OK || !l.Attested {
			t.Errorf("%+v", l)
		}
	}
	if r := run(t, c.env, "doctor", "--config", path); !strings.Contains(r.out, "ok (attested)\taof\t") {
		t.Error(r.out)
	}
}

func TestDoctorWorksWithOneStoreDown(t *testing.T) {
	testkit.Long(t)
	c := newClinic(t)
	c.env["DROPCTL_REDIS_URL"] = "redis://127.0.0.1:1"
	if l := c.ask(t, 6).line(t, "redis", "reachable"); l.Result != doctor.Fail || l.Fix == "" {
		t.Errorf("%+v", l)
	}
	if l := c.ask(t, 6).line(t, "postgres", "triggers"); l.Result != doctor.OK {
		t.Errorf("%+v", l)
	}
	c.env["DROPCTL_REDIS_URL"], c.env["DROPCTL_DATABASE_URL"] = c.redis.SocketURL(), "postgres://app:hush@127.0.0.1:1/shop"
	report := c.ask(t, 6)
	if l := report.line(t, "postgres", "reachable"); l.Result != doctor.Fail || l.Target != "127.0.0.1:1/shop" {
		t.Errorf("%+v", l)
	}
	if l := report.line(t, "redis", "eviction"); l.Result != doctor.OK {
		t.Errorf("%+v", l)
	}
	for _, args := range [][]string{{"--only", "mysql"}, {"--profile", "staging"}} {
		if r := run(t, c.env, append([]string{"doctor"}, args...)...); r.exit != 2 {
			t.Errorf("%v: exit %d", args, r.exit)
		}
	}
	delete(c.env, "DROPCTL_DATABASE_URL")
	if l := c.ask(t, 6).line(t, "postgres", "reachable"); !strings.Contains(l.What, "no PostgreSQL is named") {
		t.Errorf("%+v", l)
	}
	delete(c.env, "DROPCTL_REDIS_URL")
	if r := run(t, c.env, "doctor"); r.exit != 2 {
		t.Errorf("with no store named: exit %d", r.exit)
	}
}

// TestDoctorKnowsWhatItDoesNotKnow looks at a database without a schema: no line may pass for want of facts.
func TestDoctorKnowsWhatItDoesNotKnow(t *testing.T) {
	testkit.Long(t)
	c := newClinic(t)
	c.env["DROPCTL_DATABASE_URL"] = testkit.Postgres(t).URL(lab.App)
	report := c.ask(t, 6)
	if l := report.line(t, "postgres", "migrations"); l.Result != doctor.Fail || l.Fix != "as the role that owns the schema: dropctl migrate up" {
		t.Errorf("%+v", l)
	}
	for _, check := range []string{"rights", "triggers", "stopped-lots", "dead-letters", "workers", "installation"} {
		if l := report.line(t, "", check); l.Result != doctor.Unknown || l.Fix != "as the role that owns the schema: dropctl migrate up" {
			t.Errorf("%+v", l)
		}
	}
}

// TestLotOpenLooksFirst opens a paused lot on servers that must not be sold from.
func TestLotOpenLooksFirst(t *testing.T) {
	testkit.Long(t)
	c := newClinic(t)
	for _, args := range [][]string{{"seed", "hat", "--stock", "5"}, {"seed", "cap", "--stock", "5"}, {"lot", "pause", "hat", "cap"}} {
		if r := run(t, c.env, args...); r.exit != 0 {
			t.Fatal(r.err)
		}
	}
	status := func() string {
		return strings.TrimSpace(run(t, c.env, "lot", "show", "hat", "--jq", ".status").out)
	}
	refused := func(exit int, code string) {
		t.Helper()
		start := time.Now()
		r := run(t, c.env, "lot", "open", "hat")
		if r.exit != exit || !strings.Contains(r.err, "("+code+")") || !strings.Contains(r.err, "hint: ") {
			t.Errorf("exit %d, %s", r.exit, r.err)
		}
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("it took %s", took)
		}
	}
	c.do(t, "CONFIG", "SET", "maxmemory-policy", "volatile-lru")
	refused(4, "unsafe_redis")
	c.do(t, "CONFIG", "SET", "maxmemory-policy", "noeviction")
	if is := status(); is != "paused" {
		t.Errorf("it is %s", is)
	}

	// A snapshot that cannot be written: a folder is in its place.
	if err := os.Mkdir(filepath.Join(c.redis.Dir(), "dump.rdb"), 0o700); err != nil {
		t.Fatal(err)
	}
	c.do(t, "CONFIG", "SET", "save", "3600 1")
	c.do(t, "BGSAVE")
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		info, err := c.redis.Do(t.Context(), "INFO", "persistence")
		return err == nil && strings.Contains(info, "rdb_last_bgsave_status:err"), info
	})
	refused(4, "unsafe_redis")
	c.do(t, "CONFIG", "SET", "save", "")

	replica := testkit.Redis(t)
	before := c.env["DROPCTL_REDIS_URL"]
	if _, err := replica.Do(t.Context(), "REPLICAOF", "127.0.0.1", "1"); err != nil {
		t.Fatal(err)
	}
	c.env["DROPCTL_REDIS_URL"] = replica.SocketURL()
	refused(4, "unsafe_redis")
	c.env["DROPCTL_REDIS_URL"] = before

	other := stores.Database(t, 4)
	c.env["DROPCTL_DATABASE_URL"] = other.URL(lab.App)
	refused(5, "foreign_installation")
	c.env["DROPCTL_DATABASE_URL"] = "postgres://app@127.0.0.1:1/shop" // it is down, which blocks nothing
	if r := run(t, c.env, "lot", "open", "hat"); r.exit != 0 || status() != "open" {
		t.Errorf("exit %d, %s", r.exit, r.err)
	}
	metas, err := c.redis.Do(t.Context(), "KEYS", "*:meta")
	if err != nil {
		t.Fatal(err)
	}
	for meta := range strings.Lines(metas) {
		c.do(t, "HSET", strings.TrimSpace(meta), "run", "another")
	}
	refused(5, "lot_frozen")
}
