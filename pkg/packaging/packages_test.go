package packaging

import (
	"bytes"
	"encoding/binary"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// make package gives both: the tool that builds packages, and the program that goes into them.
var (
	nfpm    = flag.String("nfpm", "", "path of nfpm")
	program = flag.String("program", "", "path of a static dropctl for this machine")
	outDir  = flag.String("out", "", "folder to leave the packages in")
)

// root is the top of the repository, where the paths of the release file begin.
const root = "../.."

// packaged are the files of both packages and their modes.
var packaged = map[string]os.FileMode{
	"/usr/bin/dropctl": 0o755,
	"/usr/lib/systemd/system/dropctl-serve.service":     0o644,
	"/usr/lib/systemd/system/dropctl-worker.service":    0o644,
	"/usr/lib/systemd/system/dropctl-reconcile.service": 0o644,
	"/usr/lib/systemd/system/dropctl-reconcile.timer":   0o644,
	"/etc/dropctl/dropctl.yaml":                         0o644,
	"/etc/dropctl/redis-url":                            0o600,
	"/etc/dropctl/database-url":                         0o600,
	"/usr/share/dropctl/rules.yaml":                     0o644,
	"/usr/share/dropctl/dashboard.json":                 0o644,
	"/usr/share/bash-completion/completions/dropctl":    0o644,
	"/usr/share/fish/vendor_completions.d/dropctl.fish": 0o644,
	"/usr/share/doc/dropctl/README.md":                  0o644,
	"/usr/share/doc/dropctl/LICENSE":                    0o644,
}

func do(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = root
	// The settings of whoever calls make must not get into what the installed program says.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "DROPCTL_") })
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// build makes the package that the release file describes.
func build(t *testing.T, format string) (path string) {
	t.Helper()
	if *nfpm == "" || *program == "" {
		t.Skip("make package builds and installs packages")
	}
	data, err := os.ReadFile(filepath.Join(root, ".goreleaser.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var release struct {
		NFPMs []map[string]any `yaml:"nfpms"`
	}
	if err := yaml.Unmarshal(data, &release); err != nil || len(release.NFPMs) != 1 {
		t.Fatalf("%v, %d packages", err, len(release.NFPMs))
	}
	p := release.NFPMs[0]
	contents, _ := p["contents"].([]any)
	p["contents"] = append(contents, map[string]any{"src": *program, "dst": p["bindir"].(string) + "/dropctl", "file_info": map[string]any{"mode": 0o755}})
	p["name"], p["arch"], p["version"] = p["package_name"], runtime.GOARCH, "0.0.1"
	for _, key := range []string{"package_name", "formats", "bindir", "mtime"} { // what only the release tool knows
		delete(p, key)
	}
	if data, err = yaml.Marshal(p); err != nil {
		t.Fatal(err)
	}
	dir := *outDir
	if dir == "" {
		dir = t.TempDir()
	}
	file, path := filepath.Join(t.TempDir(), "nfpm.yaml"), filepath.Join(dir, "dropctl_"+runtime.GOARCH+"."+format)
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	do(t, *nfpm, "package", "--config", file, "--packager", format, "--target", path)
	return path
}

func TestTheDebInstalls(t *testing.T) {
	deb := build(t, "deb")
	info := do(t, "dpkg-deb", "--info", deb)
	for _, line := range []string{"Package: dropctl", "Section: admin", "Homepage: https://"} {
		if !strings.Contains(info, line) {
			t.Errorf("%q is missing in\n%s", line, info)
		}
	}
	scratch := t.TempDir()
	for _, dir := range []string{"var/lib/dpkg/info", "var/lib/dpkg/updates", "tmp"} {
		if err := os.MkdirAll(filepath.Join(scratch, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(scratch, "var/lib/dpkg/status"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	dpkg := func(args ...string) string {
		return do(t, "dpkg", append([]string{"--root=" + scratch, "--force-not-root", "--force-script-chrootless", "--log=" + scratch + "/log", "--force-confold"}, args...)...)
	}
	if said := dpkg("--install", deb); !strings.Contains(said, "/etc/dropctl/redis-url") {
		t.Errorf("it does not say what comes next:\n%s", said)
	}
	for path, mode := range packaged {
		if info, err := os.Stat(filepath.Join(scratch, path)); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, want the mode %s", path, err, mode)
		}
	}
	installed := filepath.Join(scratch, "usr/bin/dropctl")
	if out := do(t, installed, "version"); !strings.Contains(out, runtime.GOARCH) {
		t.Errorf("the program says %s", out)
	}
	config := filepath.Join(scratch, "etc/dropctl/dropctl.yaml")
	if out := do(t, installed, "config", "view", "--config", config, "--origin"); !strings.Contains(out, config) {
		t.Errorf("the sample config is not read:\n%s", out)
	}
	checkUnits(t, scratch)

	// What somebody changed outlives an upgrade and a removal, and goes with a purge.
	if err := os.WriteFile(config, []byte("version: 1\nqueue: 99\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	dpkg("--install", deb)
	dpkg("--remove", "dropctl")
	if data, err := os.ReadFile(config); err != nil || !strings.Contains(string(data), "queue: 99") {
		t.Errorf("the config after an upgrade and a removal: %q, %v", data, err)
	}
	if _, err := os.Stat(installed); !os.IsNotExist(err) {
		t.Errorf("the program is still there: %v", err)
	}
	dpkg("--purge", "dropctl")
	if _, err := os.Stat(filepath.Join(scratch, "etc/dropctl")); !os.IsNotExist(err) {
		t.Errorf("a purge leaves the config: %v", err)
	}
}

// checkUnits lets systemd read the installed units, where it is there, as if the program were in its place.
func checkUnits(t *testing.T, scratch string) {
	t.Helper()
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Log("there is no systemd-analyze to read the units")
		return
	}
	units, err := filepath.Glob(filepath.Join(scratch, "usr/lib/systemd/system/dropctl-*"))
	if err != nil || len(units) != 4 {
		t.Fatalf("%v, %v", units, err)
	}
	dir := t.TempDir()
	var copies []string
	for _, unit := range units {
		text, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		copied := filepath.Join(dir, filepath.Base(unit))
		text = bytes.ReplaceAll(text, []byte("ExecStart=/usr/bin/"), []byte("ExecStart="+filepath.Join(scratch, "usr/bin")+"/"))
		if err := os.WriteFile(copied, text, 0o644); err != nil {
			t.Fatal(err)
		}
		copies = append(copies, copied)
	}
	if out := do(t, "systemd-analyze", append([]string{"verify", "--man=no"}, copies...)...); out != "" {
		t.Errorf("systemd says of the units: %s", out)
	}
	for _, copied := range copies {
		if strings.HasSuffix(copied, ".service") { // of 100; a service without any of these settings has 96
			do(t, "systemd-analyze", "security", "--offline=yes", "--threshold=20", copied)
		}
	}
}

// Of the header of an rpm: what it says about its files.
const (
	rpmDirIndexes = 1116
	rpmBaseNames  = 1117
	rpmDirNames   = 1118
	rpmModes      = 1030
	rpmFlags      = 1037
	rpmNoReplace  = 1 | 1<<4 // a config file that is kept if somebody changed it
)

// TestTheRPMHasEverything reads the package's own header: rpm is not on every machine that builds.
func TestTheRPMHasEverything(t *testing.T) {
	file := build(t, "rpm")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	names, modes, flags := rpmFiles(t, data)
	for path, mode := range packaged {
		i := slices.Index(names, path)
		if i < 0 || os.FileMode(modes[i])&os.ModePerm != mode {
			t.Errorf("%s is not there with the mode %s; there are %v", path, mode, names)
			continue
		}
		if config := strings.HasPrefix(path, "/etc/"); config != (flags[i] == rpmNoReplace) {
			t.Errorf("%s: the flags are %d", path, flags[i])
		}
	}
	if !slices.Contains(names, "/usr/share/zsh/site-functions/_dropctl") {
		t.Error("the completion of zsh is missing")
	}
	installRPM(t, file)
}

// installRPM lets rpm install the package, where it is there, into a folder that has nothing else, and take it away again.
func installRPM(t *testing.T, file string) {
	t.Helper()
	if _, err := exec.LookPath("rpm"); err != nil {
		t.Log("there is no rpm to install the package with")
		return
	}
	scratch := t.TempDir()
	rpm := func(args ...string) string {
		return do(t, "rpm", append([]string{"--root=" + scratch, "--dbpath=/var/lib/rpm"}, args...)...)
	}
	rpm("--initdb")
	rpm("--install", "--nodeps", "--noscripts", file)
	for path, mode := range packaged {
		if info, err := os.Stat(filepath.Join(scratch, path)); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, want the mode %s", path, err, mode)
		}
	}
	installed := filepath.Join(scratch, "usr/bin/dropctl")
	if out := do(t, installed, "version"); !strings.Contains(out, runtime.GOARCH) {
		t.Errorf("the program says %s", out)
	}
	config := filepath.Join(scratch, "etc/dropctl/dropctl.yaml")
	if err := os.WriteFile(config, []byte("version: 1\nqueue: 99\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	rpm("--erase", "--noscripts", "dropctl")
	if data, err := os.ReadFile(config + ".rpmsave"); err != nil || !strings.Contains(string(data), "queue: 99") {
		t.Errorf("the config after a removal: %q, %v", data, err)
	}
	if _, err := os.Stat(installed); !os.IsNotExist(err) {
		t.Errorf("the program is still there: %v", err)
	}
}

// rpmFiles reads the names, modes and flags of an rpm's files: a lead of 96 bytes, then two headers, of which the first one
// is filled up to 8 bytes. A header is 16 bytes (of which the last 8 count its entries and its data), the entries (tag,
// type, offset, count), the data. All numbers are big-endian.
func rpmFiles(t *testing.T, data []byte) (names []string, modes []uint16, flags []uint32) {
	t.Helper()
	be := binary.BigEndian
	entries := func(at int) (count, store, end int) {
		if !bytes.Equal(data[at:at+3], []byte{0x8e, 0xad, 0xe8}) {
			t.Fatalf("there is no header at %d", at)
		}
		count = int(be.Uint32(data[at+8:]))
		store = at + 16 + 16*count
		return count, store, store + int(be.Uint32(data[at+12:]))
	}
	_, _, at := entries(96)
	at = (at + 7) / 8 * 8
	count, store, _ := entries(at)
	var bases, dirs []string
	var indexes []uint32
	for i := range count {
		e := data[at+16+16*i:]
		tag, from, n := be.Uint32(e), data[store+int(be.Uint32(e[8:])):], int(be.Uint32(e[12:]))
		for j := range n {
			switch tag {
			case rpmBaseNames, rpmDirNames:
				text, rest, _ := bytes.Cut(from, []byte{0})
				from = rest
				if tag == rpmBaseNames {
					bases = append(bases, string(text))
				} else {
					dirs = append(dirs, string(text))
				}
			case rpmDirIndexes:
				indexes = append(indexes, be.Uint32(from[4*j:]))
			case rpmFlags:
				flags = append(flags, be.Uint32(from[4*j:]))
			case rpmModes:
				modes = append(modes, be.Uint16(from[2*j:]))
			}
		}
	}
	for i, base := range bases {
		names = append(names, dirs[indexes[i]]+base)
	}
	return names, modes, flags
}
