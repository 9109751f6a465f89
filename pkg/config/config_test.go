package config

import (
	"cmp"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/dropctl/dropctl/pkg/fault"
)

var allGroups = []Group{Global, Redis, Database, API, Serving, Metrics, Stock, Durable, Work, Tasks, Broker, Paying, Lag, First}

// resolve is Resolve with flags typed as args, an environment and the text of a config file.
func resolve(t *testing.T, args []string, env map[string]string, file string) (*Config, error) {
	t.Helper()
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	AddFlags(flags, allGroups...)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	getenv := func(name string) string { return env[name] }
	fromEnv, err := ApplyEnv(flags, getenv)
	if err != nil {
		return nil, err
	}
	src := Sources{Flags: flags, EnvFlags: fromEnv, Getenv: getenv, File: "none"}
	if file != "" {
		src.File = writeFile(t, file)
	}
	return Resolve(src)
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), fileName)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// samples returns three different valid values of a setting.
func samples(s Setting) [3]string {
	switch s.kind {
	case url:
		return [3]string{"redis://a", "redis://b", "redis://c"}
	case duration:
		return [3]string{"2m", "3m", "4m"}
	case size:
		return [3]string{"1MiB", "2MiB", "3MiB"}
	case count:
		return [3]string{fmt.Sprint(s.min + 2), fmt.Sprint(s.min + 3), fmt.Sprint(s.min + 4)}
	case boolean:
		return [3]string{"true", "false", "true"}
	case level:
		return [3]string{"memory", "disk", "replicas=2"}
	case frequency:
		return [3]string{"5/s", "600/m", "0"}
	case networks:
		return [3]string{"10.0.0.0/8,::1", "127.0.0.1", "fd00::/8"}
	}
	if c := s.Choices; c != nil {
		return [3]string{c[len(c)-1], c[0], c[1]}
	}
	return [3]string{"a", "b", "c"}
}

func TestPrecedenceOfEverySetting(t *testing.T) {
	for _, s := range Settings() {
		t.Run(s.Name, func(t *testing.T) {
			v := samples(s)
			file := "version: 1\n" + s.Name + ": " + v[0] + "\n"
			env := map[string]string{s.Env(): v[1]}
			flag := []string{"--" + s.Name + "=" + v[2]}
			cases := []struct {
				name, file, want, origin string
				env                      map[string]string
				flags                    []string
			}{
				{name: "default", want: s.Default, origin: "default"},
				{name: "file", file: file, want: v[0], origin: "file "},
				{name: "env over file", file: file, env: env, want: v[1], origin: "env " + s.Env()},
				{name: "flag over env", file: file, env: env, flags: flag, want: v[2], origin: "flag --" + s.Name},
				{name: "flag over file", file: file, flags: flag, want: v[2], origin: "flag --" + s.Name},
				{name: "empty env is unset", file: file, env: map[string]string{s.Env(): ""}, want: v[0], origin: "file "},
			}
			for _, c := range cases {
				if s.Group == Unflagged && c.flags != nil {
					continue
				}
				cfg, err := resolve(t, c.flags, c.env, c.file)
				if err != nil {
					t.Fatalf("%s: %v", c.name, err)
				}
				if got := cfg.Origin(s.Name); !strings.HasPrefix(got, c.origin) {
					t.Errorf("%s: origin %q, want %q", c.name, got, c.origin)
				}
				want, err := s.parse(c.want)
				if err != nil {
					t.Fatal(err)
				}
				if s.Name == "actor" && c.want == "" {
					want = defaultActor(func(string) string { return "" })
				}
				if got := cfg.Shown(s.Name); fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("%s: value %v, want %v", c.name, got, want)
				}
			}
		})
	}
}

func TestEverySettingHasAField(t *testing.T) {
	cfg, err := resolve(t, nil, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range Settings() {
		if cfg.Shown(s.Name) == nil {
			t.Errorf("%s has no field in Config", s.Name)
		}
	}
}

func TestRefusedValues(t *testing.T) {
	cases := []struct {
		name  string
		args  []string
		env   map[string]string
		file  string
		code  fault.Code
		words []string // in message or hint
	}{
		{name: "unknown key", file: "redis_url: redis://x", code: fault.InvalidConfig, words: []string{"redis_url", ":1:", "did you mean redis-url?"}},
		{name: "unknown key far from all", file: "version: 1\nzzzzzzzzzzzzzzz: 1", code: fault.InvalidConfig, words: []string{":2:", "help environment"}},
		{name: "newer file", file: "version: 2\nsomething: new", code: fault.InvalidConfig, words: []string{"version 2", "newer dropctl"}},
		{name: "version word", file: "version: one", code: fault.InvalidConfig, words: []string{"one"}},
		{name: "twice", file: "timeout: 1s\ntimeout: 2s", code: fault.InvalidConfig, words: []string{"timeout"}},
		{name: "a level", args: []string{"--durability", "replicas=0"}, code: fault.Usage, words: []string{"durability", "replicas=N"}},
		{name: "a level in the file", file: "durability: always", code: fault.InvalidConfig, words: []string{"durability", "disk"}},
		{name: "a list", file: "timeout: [1s]", code: fault.InvalidConfig, words: []string{"timeout", "one value"}},
		{name: "no value", file: "timeout:", code: fault.InvalidConfig, words: []string{"no value"}},
		{name: "nested", file: "redis:\n  url: x", code: fault.InvalidConfig, words: []string{`"redis"`}},
		{name: "not a map", file: "- timeout", code: fault.InvalidConfig, words: []string{"setting: value"}},
		{name: "not YAML", file: "a: b: c", code: fault.InvalidConfig, words: []string{"YAML"}},
		{name: "duration without unit", file: "timeout: 10", code: fault.InvalidConfig, words: []string{"such as 10s", "file "}},
		{name: "zero timeout", args: []string{"--timeout=0s"}, code: fault.Usage, words: []string{"too small"}},
		{name: "no shards", env: map[string]string{"DROPCTL_SHARDS": "0"}, code: fault.InvalidConfig, words: []string{"DROPCTL_SHARDS", "too small"}},
		{name: "too many shards", args: []string{"--shards=20000"}, code: fault.Usage, words: []string{"16384"}},
		{name: "half a shard", args: []string{"--shards=1.5"}, code: fault.Usage, words: []string{"whole number"}},
		{name: "size", args: []string{"--outbox-max-bytes=1.5 MiB"}, code: fault.Usage, words: []string{"64MiB"}},
		{name: "a rate", args: []string{"--limit-user=20"}, code: fault.Usage, words: []string{"20/s"}},
		{name: "a rate of days", file: "limit-key: 5/d", code: fault.InvalidConfig, words: []string{"5/d", "600/m"}},
		{name: "a rate that is too high", args: []string{"--limit-key=1000001/s"}, code: fault.Usage, words: []string{"1000000"}},
		{name: "a negative rate", args: []string{"--limit-address=-1/s"}, code: fault.Usage, words: []string{"-1/s"}},
		{name: "a name for a proxy", args: []string{"--trusted-proxies=10.0.0.1, proxy"}, code: fault.Usage, words: []string{"proxy", "10.0.0.0/8"}},
		{name: "an address within a network", args: []string{"--trusted-proxies=10.1.2.3/8"}, code: fault.Usage, words: []string{"10.0.0.0/8"}},
		{name: "an IPv4 network as IPv6", args: []string{"--trusted-proxies=::ffff:10.0.0.0/104"}, code: fault.Usage, words: []string{"IPv4"}},
		{name: "word", args: []string{"--log-level=loud"}, code: fault.Usage, words: []string{"debug, info, warn, error"}},
		{name: "bool", env: map[string]string{"DROPCTL_YES": "perhaps"}, code: fault.InvalidConfig, words: []string{"DROPCTL_YES", "neither true nor false"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := resolve(t, c.args, c.env, c.file)
			if !fault.Is(err, c.code) {
				t.Fatalf("got %v, want code %s", err, c.code)
			}
			text := err.Error() + " " + fault.HintOf(err)
			for _, w := range c.words {
				if !strings.Contains(text, w) {
					t.Errorf("%q is not in %q", w, text)
				}
			}
		})
	}
}

func TestWhichFileIsRead(t *testing.T) {
	home, xdg := t.TempDir(), t.TempDir()
	put := func(folder string) string {
		path := filepath.Join(folder, fileName)
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	inHome := put(filepath.Join(home, ".config", "dropctl"))
	inXDG := put(filepath.Join(xdg, "dropctl"))
	cases := []struct {
		name, flag, want string
		env              map[string]string
	}{
		{"home", "", inHome, map[string]string{"HOME": home}},
		{"XDG first", "", inXDG, map[string]string{"HOME": home, "XDG_CONFIG_HOME": xdg}},
		{"relative XDG is ignored", "", inHome, map[string]string{"HOME": home, "XDG_CONFIG_HOME": "xdg"}},
		{"the flag", "other.yaml", "other.yaml", map[string]string{"HOME": home}},
		{"none", "none", "", map[string]string{"HOME": home}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := FindFile(Sources{File: c.flag, Getenv: func(k string) string { return c.env[k] }})
			if err != nil || got != c.want {
				t.Errorf("got %q, %v, want %q", got, err, c.want)
			}
		})
	}
}

func TestAFileThatCannotBeRead(t *testing.T) {
	big := writeFile(t, strings.Repeat("#", maxFileSize+1))
	for _, path := range []string{"/does/not/exist.yaml", t.TempDir(), big} {
		_, err := Resolve(Sources{File: path, Getenv: func(string) string { return "" }})
		if !fault.Is(err, fault.InvalidConfig) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestRedactedURLs(t *testing.T) {
	const pw = "hunter2"
	cases := []struct{ value, shown string }{
		{"redis://h:6379/0", "redis://h:6379/0"},
		{"redis://user@h", "redis://user@h"},
		{"redis://:hunter2@h", "redis://:[redacted]@h"},
		{"rediss://u:hunter2@h:1/2?x=1", "rediss://u:[redacted]@h:1/2?x=1"},
		{"redis-sentinel://u:hunter2@h1:1,h2:2/master?sentinel_password=hunter2", "redis-sentinel://u:[redacted]@h1:1,h2:2/master?sentinel_password=[redacted]"},
		{"redis-cluster://:hunter2@h1,h2", "redis-cluster://:[redacted]@h1,h2"},
		{"unix://u:hunter2@/run/redis.sock", "unix://u:[redacted]@/run/redis.sock"},
		{"postgres://u:hun@ter2/hunter2@h/db", "postgres://u:[redacted]@h/db"},
		{"postgres://u:hunter2?@h/db", "postgres://u:[redacted]@h/db"},
		{"postgres://u@h/db?password=hunter2&sslmode=require", "postgres://u@h/db?password=[redacted]&sslmode=require"},
		{"host=h user=u password=hunter2 dbname=d", "host=h user=u password=[redacted] dbname=d"},
		{"host=h password = 'hunter2 \\' hunter2' dbname=d", "host=h password=[redacted] dbname=d"},
		{`host=h password=hunter2\ hunter2 dbname=d`, "host=h password=[redacted] dbname=d"},
		{"pwd=hunter2 host=h", "pwd=[redacted] host=h"},
		{"postgres://h:1/d?pwd=hunter2", "postgres://h:1/d?pwd=[redacted]"},
		{"redis://u:hunter2,h:1", "redis://[redacted]"},
		{"redis://u:[hunter2", "redis://[redacted]"},
		{"redis://u:hunter2/[::1]:6379", "redis://[redacted]"},
		{":hunter2", "[redacted]"},
		{"hunter2", "[redacted]"},
		{"host=h password='hunter2", "[redacted]"},
		{"https://key:hunter2@api", "https://key:[redacted]@api"},
		{"u:hunter2@h", "[redacted]"},
		{"redis://:hunter2", "redis://[redacted]"},
		{"postgres://u:hunter2/db", "postgres://[redacted]"},
		{"redis://u:2hunter2hunter2", "redis://[redacted]"},
		{"redis-cluster://h1:6379,h2:6380,h3/0?x=1", "redis-cluster://h1:6379,h2:6380,h3/0?x=1"},
		{"redis://[::1]:6379/0", "redis://[::1]:6379/0"},
		{"redis://[fe80::a1%25eth0]:6379", "redis://[fe80::a1%25eth0]:6379"},
		{"env:SHOP_URL", "env:SHOP_URL"},
		{"file:/run/secrets/url", "file:/run/secrets/url"},
		{"", ""},
	}
	for _, c := range cases {
		s := NewURL(c.value)
		if got := s.String(); got != c.shown {
			t.Errorf("%s: shown as %s, want %s", c.value, got, c.shown)
		}
		if s.Reveal() != c.value {
			t.Errorf("%s: revealed as %s", c.value, s.Reveal())
		}
		if strings.Contains(s.String(), pw) {
			t.Errorf("%s shows the password", c.value)
		}
	}
}

func TestASecretIsNeverPrinted(t *testing.T) {
	type inner struct{ s Secret } // unexported: fmt cannot call its methods
	cfg, err := resolve(t, []string{"--redis-url=redis://u:hunter2@h"}, nil, "database-url: postgres://u:hunter2@h/d\n")
	if err != nil {
		t.Fatal(err)
	}
	s := NewSecret("hunter2")
	var out strings.Builder
	for _, x := range []any{s, &s, []Secret{s}, map[string]Secret{"a": s}, inner{s}, *cfg, cfg} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			fmt.Fprintf(&out, verb, x)
		}
		j, err := json.Marshal(x)
		if err != nil {
			t.Fatal(err)
		}
		y, err := yaml.Marshal(x)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(j)
		out.Write(y)
		slog.New(slog.NewTextHandler(&out, nil)).Info("x", "value", x)
		slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "value", x)
	}
	for _, word := range []string{"hunter2", fmt.Sprintf("%x", "hunter2")} {
		if i := strings.Index(out.String(), word); i >= 0 {
			t.Errorf("the secret is in the output: …%s…", out.String()[max(0, i-80):i+len(word)])
		}
	}
}

func TestWarningForAPasswordInArguments(t *testing.T) {
	typed, err := resolve(t, []string{"--redis-url=redis://:hunter2@h"}, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	if w := typed.Warnings(); len(w) != 1 || !strings.Contains(w[0], "DROPCTL_REDIS_URL") || strings.Contains(w[0], "hunter2") {
		t.Errorf("warnings: %q", w)
	}
	fromEnv, err := resolve(t, nil, map[string]string{"DROPCTL_REDIS_URL": "redis://:hunter2@h"}, "")
	if err != nil {
		t.Fatal(err)
	}
	if w := fromEnv.Warnings(); len(w) != 0 {
		t.Errorf("a password from the environment is fine, but: %q", w)
	}
}

func TestTargets(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("from-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"SHOP": "redis://from-env"}
	getenv := func(k string) string { return env[k] }
	cases := []struct {
		args     []string
		url      string
		password string
		code     fault.Code
		words    []string
	}{
		{args: []string{"--redis-url=redis://h", "--redis-password-file=" + secret}, url: "redis://h", password: "from-file"},
		{args: []string{"--redis-url=env:SHOP"}, url: "redis://from-env"},
		{args: []string{"--redis-url=file:" + secret}, url: "from-file"},
		{args: []string{"--redis-url=file://" + secret}, url: "from-file"},
		{code: fault.Usage, words: []string{"--redis-url", "DROPCTL_REDIS_URL", "dropctl lab"}},
		{args: []string{"--server=http://h"}, code: fault.Usage, words: []string{"--redis-url", "dropctl help server"}},
		{args: []string{"--redis-url=env:NOT_SET"}, code: fault.InvalidConfig, words: []string{"NOT_SET"}},
		{args: []string{"--redis-url=file:/does/not/exist"}, code: fault.InvalidConfig, words: []string{"/does/not/exist"}},
		{args: []string{"--redis-url=redis://h", "--redis-password-file=/does/not/exist"}, code: fault.InvalidConfig, words: []string{"redis-password-file"}},
		{args: []string{"--redis-url=redis://h", "--redis-password-file=/dev/null"}, code: fault.InvalidConfig, words: []string{"empty"}},
	}
	for _, c := range cases {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			cfg, err := resolve(t, c.args, nil, "")
			if err != nil {
				t.Fatal(err)
			}
			target, err := cfg.Redis(getenv)
			if fault.CodeOf(err) != c.code {
				t.Fatalf("got %v, want code %q", err, c.code)
			}
			if err != nil {
				text := err.Error() + fault.HintOf(err)
				for _, w := range c.words {
					if !strings.Contains(text, w) {
						t.Errorf("%q is not in %q", w, text)
					}
				}
				return
			}
			if target.URL.Reveal() != c.url || target.Password.Reveal() != c.password {
				t.Errorf("got %q with %q", target.URL.Reveal(), target.Password.Reveal())
			}
		})
	}
}

func TestNothingIsDialledByDefault(t *testing.T) {
	cfg, err := resolve(t, nil, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	none := func(string) string { return "" }
	_, redis := cfg.Redis(none)
	_, database := cfg.Database(none)
	_, api := cfg.API(none)
	for _, err := range []error{redis, database, api} {
		if !fault.Is(err, fault.Usage) {
			t.Errorf("got %v", err)
		}
	}
}

func TestEnvironmentOfOtherFlags(t *testing.T) {
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	qty := flags.Int("qty", 1, "")
	flags.Bool("version", false, "")
	env := map[string]string{"DROPCTL_QTY": "3", "DROPCTL_VERSION": "v1.2.3"}
	set, err := ApplyEnv(flags, func(k string) string { return env[k] })
	if err != nil || *qty != 3 || !set["qty"] {
		t.Errorf("qty %d, set %v, %v", *qty, set, err)
	}
	env["DROPCTL_QTY"] = "many"
	again := pflag.NewFlagSet("test", pflag.ContinueOnError)
	again.Int("qty", 1, "")
	if _, err := ApplyEnv(again, func(k string) string { return env[k] }); !fault.Is(err, fault.Usage) {
		t.Errorf("got %v", err)
	}
}

func TestBytes(t *testing.T) {
	for text, want := range map[string]Bytes{"0": 0, "7": 7, "1B": 1, "64MiB": 64 << 20, "64 mib": 64 << 20, "2KB": 2000, "1GiB": 1 << 30} {
		got, err := ParseBytes(text)
		if err != nil || got != want {
			t.Errorf("%s: %d, %v", text, got, err)
		}
		if back, err := ParseBytes(got.String()); err != nil || back != got {
			t.Errorf("%s: written as %s, read as %d, %v", text, got, back, err)
		}
	}
	for _, text := range []string{"", "-1", "MiB", "1.5MiB", "9999999999GiB", "1XB", "0x10"} {
		if got, err := ParseBytes(text); err == nil {
			t.Errorf("%q: %d", text, got)
		}
	}
}

func TestAttestSection(t *testing.T) {
	cfg, err := resolve(t, nil, nil, "attest:\n  redis-appendfsync: always\n  redis-min-replicas-to-write: 1\n  redis-save: ''\n")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"redis-appendfsync": "always", "redis-min-replicas-to-write": "1", "redis-save": ""}
	if fmt.Sprint(cfg.Attested) != fmt.Sprint(want) {
		t.Errorf("attested is %v", cfg.Attested)
	}
	listed := cfg.Listed()
	if last := listed[len(listed)-1]; last != "attest.redis-save" || cfg.Shown("attest.redis-appendfsync") != "always" || !strings.HasPrefix(cfg.Origin(last), "file ") {
		t.Errorf("listed are %v", listed)
	}
	for file, hint := range map[string]string{
		"attest:\n  redis-apendfsync: always\n":                                 "did you mean redis-appendfsync?",
		"attest:\n  postgres-fsync: on\n":                                       "",
		"attest:\n  redis-appendfsync: sometimes\n":                             "",
		"attest:\n  redis-min-replicas-to-write: many\n":                        "",
		"attest:\n  redis-maxmemory-policy: allkeys-lru\n":                      "",
		"attest:\n  redis-save: [a]\n":                                          "as CONFIG GET would show it",
		"attest:\n  redis-save:\n":                                              "as CONFIG GET would show it",
		"attest:\n  redis-appendfsync: always\n  redis-appendfsync: everysec\n": "",
		"attest: always\n":                                                      "",
		"attest:\n":                                                             "drop the line",
		"attest: {}\nattest: {}\n":                                              "",
		"attst:\n  redis-appendfsync: always\n":                                 "",
	} {
		if _, err := resolve(t, nil, nil, file); !fault.Is(err, fault.InvalidConfig) || !strings.Contains(fault.HintOf(err), hint) {
			t.Errorf("%q: %v; hint %q", file, err, fault.HintOf(err))
		}
	}
}

func TestTheServerOrTheStores(t *testing.T) {
	const file = "server: http://h\nredis-url: redis://h\n"
	server, redis, database := "DROPCTL_SERVER", "DROPCTL_REDIS_URL", "DROPCTL_DATABASE_URL"
	for name, c := range map[string]struct {
		flags, env []string
		file       string
		needed     string
		want       bool
		wrong      string // the flag at fault
	}{
		"nothing":                           {},
		"the stores alone":                  {env: []string{redis}},
		"the server alone":                  {env: []string{server}, want: true},
		"a flag beats the environment":      {flags: []string{"server"}, env: []string{redis, database}, want: true},
		"a flag beats the environment too":  {flags: []string{"redis-url"}, env: []string{server}},
		"the environment beats the file":    {env: []string{server}, file: file, want: true},
		"the environment beats it too":      {env: []string{redis}, file: file},
		"side by side":                      {env: []string{server, redis}},
		"side by side in the file":          {file: file},
		"side by side, but not what counts": {env: []string{server, database}, want: true},
		"side by side, and what counts":     {env: []string{server, database}, needed: "database-url"},
		"two flags":                         {flags: []string{"server", "redis-url"}, wrong: "redis-url"},
		"two flags, one of the ledger":      {flags: []string{"server", "database-url"}, wrong: "database-url"},
		"a flag of the stores":              {flags: []string{"server", "durability"}, wrong: "durability"},
		"a flag of the stores without any":  {flags: []string{"durability"}, env: []string{server}, wrong: "durability"},
		"a flag of both":                    {flags: []string{"server", "timeout"}, want: true},
	} {
		var args []string
		for _, flag := range c.flags {
			args = append(args, "--"+flag, cmp.Or(map[string]string{"durability": "disk", "timeout": "1s"}[flag], "http://h"))
		}
		env := map[string]string{}
		for _, variable := range c.env {
			env[variable] = "redis://h"
		}
		cfg, err := resolve(t, args, env, c.file)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, err := cfg.UsesServer(cmp.Or(c.needed, "redis-url"))
		if got != c.want || (err != nil) != (c.wrong != "") || err != nil && (fault.CodeOf(err) != fault.Usage || fault.As(err).Field != c.wrong) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

func TestTheKeyOfTheAPI(t *testing.T) {
	path := writeFile(t, "from-the-file\n")
	for name, c := range map[string]struct {
		args []string
		env  map[string]string
		file string
		want string
	}{
		"none":                             {},
		"a file":                           {args: []string{"--api-key-file", path}, want: "from-the-file"},
		"the environment":                  {env: map[string]string{"DROPCTL_API_KEY": "from-env"}, want: "from-env"},
		"a reference":                      {env: map[string]string{"DROPCTL_API_KEY": "env:OTHER", "OTHER": "from-other"}, want: "from-other"},
		"a reference to a file":            {env: map[string]string{"DROPCTL_API_KEY": "file:" + path}, want: "from-the-file"},
		"a flag beats the environment":     {args: []string{"--api-key-file", path}, env: map[string]string{"DROPCTL_API_KEY": "from-env"}, want: "from-the-file"},
		"the environment beats the config": {env: map[string]string{"DROPCTL_API_KEY": "from-env"}, file: "api-key-file: " + path, want: "from-env"},
	} {
		cfg, err := resolve(t, append(c.args, "--server", "http://h"), c.env, c.file)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		target, err := cfg.API(func(name string) string { return c.env[name] })
		if err != nil || target.Key.Reveal() != c.want || target.URL.Reveal() != "http://h" {
			t.Errorf("%s: %q, %v", name, target.Key.Reveal(), err)
		}
		if shown := fmt.Sprint(cfg.Shown("api-key"), target); c.want != "" && strings.Contains(shown, c.want) {
			t.Errorf("%s: the key shows: %s", name, shown)
		}
	}
	for _, env := range []map[string]string{{"DROPCTL_API_KEY": "env:NOWHERE"}, {"DROPCTL_API_KEY_FILE": "/does/not/exist"}} {
		cfg, err := resolve(t, []string{"--server", "http://h"}, env, "")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cfg.API(func(name string) string { return env[name] }); fault.CodeOf(err) != fault.InvalidConfig {
			t.Errorf("%v: %v", env, err)
		}
	}
}
