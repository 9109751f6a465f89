package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

// The oldest servers dropctl works with, as {major, minor}.
var (
	minRedis    = version{7, 0}
	minPostgres = version{15, 0}
)

type version [2]int

func (v version) String() string { return fmt.Sprintf("%d.%d", v[0], v[1]) }

func (v version) less(o version) bool { return slices.Compare(v[:], o[:]) < 0 }

// product is a server that the machine must have.
type product struct {
	name     string
	programs []string // any of them will do
	min      version
	places   []string          // folders (patterns) outside PATH where packages put it
	packages map[string]string // package manager → what to install
}

var redisProduct = product{
	name:     "Redis",
	programs: []string{"redis-server", "valkey-server"},
	min:      minRedis,
	places:   []string{"/usr/sbin", "/usr/local/bin", "/opt/homebrew/bin", "/opt/homebrew/opt/*/bin", "/usr/local/opt/*/bin"},
	packages: map[string]string{"apt-get": "redis-server", "dnf": "redis", "apk": "redis", "brew": "redis"},
}

var postgresProduct = product{
	name:     "PostgreSQL",
	programs: []string{"postgres"},
	min:      minPostgres,
	places: []string{
		"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/libexec/postgresql*",
		"/opt/homebrew/opt/postgresql*/bin", "/usr/local/opt/postgresql*/bin", "/usr/local/pgsql/bin",
	},
	packages: map[string]string{"apt-get": "postgresql", "dnf": "postgresql-server", "apk": "postgresql postgresql-client", "brew": "postgresql@17"},
}

// HasRedis reports whether a Redis (or Valkey) of that version or a newer one is installed; RedisOptions.Least asks for one.
func HasRedis(ctx context.Context, major, minor int) bool {
	p := redisProduct
	p.min = version{major, minor}
	_, err := p.find(ctx)
	return err == nil
}

// find returns the path of the product's program: the first one in PATH that is new enough, else the
// newest in the known places. The error is MissingBinary, with this system's install command as the hint.
func (p product) find(ctx context.Context) (string, error) {
	var rejected []string
	check := func(path string) (version, bool) {
		v, err := versionOf(ctx, path)
		switch {
		case err != nil:
			rejected = append(rejected, fmt.Sprintf("%s does not tell its version (%v)", path, err))
		case v.less(p.min):
			rejected = append(rejected, fmt.Sprintf("%s is version %s", path, v))
		default:
			return v, true
		}
		return v, false
	}
	for _, path := range p.candidates(filepath.SplitList(os.Getenv("PATH"))) {
		if _, ok := check(path); ok {
			return path, nil
		}
	}
	var best string
	var newest version
	for _, path := range p.candidates(p.places) {
		if v, ok := check(path); ok && newest.less(v) {
			best, newest = path, v
		}
	}
	if best != "" {
		return best, nil
	}
	if err := ctx.Err(); err != nil {
		return "", fault.As(err)
	}
	return "", p.missing(rejected)
}

func (p product) candidates(patterns []string) []string {
	var found []string
	for _, pattern := range patterns {
		if !filepath.IsAbs(pattern) { // a relative PATH entry would make the choice depend on the folder we are in
			continue
		}
		for _, program := range p.programs {
			paths, _ := filepath.Glob(filepath.Join(pattern, program))
			for _, path := range paths {
				if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
					found = append(found, path)
				}
			}
		}
	}
	return found
}

func (p product) missing(rejected []string) error {
	what := fmt.Sprintf("%s %s or newer is needed: ", p.name, p.min)
	if len(rejected) == 0 {
		what += "no " + strings.Join(p.programs, " or ") + " is installed"
	} else {
		slices.Sort(rejected)
		what += strings.Join(slices.Compact(rejected), ", ")
	}
	return fault.New(fault.MissingBinary, "%s", what).WithHint("install it: %s", p.installCommand())
}

// installCommand names the command for the first package manager this system has.
func (p product) installCommand() string {
	sudo := "sudo "
	if os.Geteuid() == 0 {
		sudo = ""
	}
	for _, manager := range []struct{ program, command string }{
		{"apt-get", sudo + "apt-get install -y "},
		{"dnf", sudo + "dnf install -y "},
		{"apk", sudo + "apk add "},
		{"brew", "brew install "},
	} {
		if _, err := exec.LookPath(manager.program); err == nil {
			return manager.command + p.packages[manager.program]
		}
	}
	if runtime.GOOS == "darwin" {
		return "brew install " + p.packages["brew"] + " (needs Homebrew)"
	}
	return fmt.Sprintf("%s %s or newer, with its programs in PATH", p.name, p.min)
}

// versionPattern finds "v=7.0.15", "(PostgreSQL) 15.18", "(PostgreSQL) 19beta1".
var versionPattern = regexp.MustCompile(`(?:v=|\) )(\d+)(?:\.(\d+))?`)

func versionOf(ctx context.Context, path string) (version, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.Env = cleanEnv()
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return version{}, err
	}
	m := versionPattern.FindStringSubmatch(string(out))
	if m == nil {
		return version{}, errors.New("unknown output of --version")
	}
	var v version
	v[0], _ = strconv.Atoi(m[1])
	v[1], _ = strconv.Atoi(m[2])
	return v, nil
}
