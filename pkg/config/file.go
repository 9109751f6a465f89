package config

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/dropctl/dropctl/pkg/fault"
)

const (
	fileName    = "dropctl.yaml"
	fileVersion = 1
	maxFileSize = 1 << 20
)

// SearchPath returns where a config file is looked for when --config is not given, best first.
func SearchPath(getenv func(string) string) []string {
	var list []string
	switch xdg, home := getenv("XDG_CONFIG_HOME"), getenv("HOME"); {
	case filepath.IsAbs(xdg): // the XDG specification says to ignore relative paths
		list = append(list, filepath.Join(xdg, "dropctl", fileName))
	case home != "":
		list = append(list, filepath.Join(home, ".config", "dropctl", fileName))
	}
	return append(list, filepath.Join("/etc", "dropctl", fileName))
}

// FindFile returns the config file that Resolve would read, or "" if there is none.
func FindFile(src Sources) (string, error) {
	switch src.File {
	case "none":
		return "", nil
	case "":
	default:
		return src.File, nil
	}
	for _, path := range SearchPath(src.Getenv) {
		_, err := os.Stat(path)
		if err == nil {
			return path, nil
		}
		// The home of another user, as under sudo, counts as empty, and so does one that is no folder, as service
		// accounts have; any other trouble must not pass in silence.
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, syscall.ENOTDIR) {
			return "", fault.Wrap(fault.InvalidConfig, err, "the config file cannot be read")
		}
	}
	return "", nil
}

// readFile returns the settings of a config file by name. The path "" is an empty file.
func readFile(path string) (map[string]any, error) {
	if path == "" {
		return nil, nil
	}
	data, err := readSmall(path)
	if err != nil {
		return nil, fault.Wrap(fault.InvalidConfig, err, "the config file cannot be read").WithField("config").
			WithHint("name another with --config PATH, or none with --config none")
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, fault.Wrap(fault.InvalidConfig, err, "%s is not valid YAML", path).
			WithHint("correct it; a list of all settings: dropctl help environment")
	}
	if len(doc.Content) == 0 {
		return nil, nil
	}
	return fileSettings(path, doc.Content[0])
}

func fileSettings(path string, root *yaml.Node) (map[string]any, error) {
	if root.Kind != yaml.MappingNode {
		return nil, fault.New(fault.InvalidConfig, "%s: expected lines of the form setting: value", path).
			WithHint("a list of all settings: dropctl help environment")
	}
	settings := map[string]any{}
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, node := root.Content[i], root.Content[i+1]
		if key.Value == "version" {
			if err := checkVersion(path, node); err != nil {
				return nil, err
			}
			continue
		}
		if !known(key.Value) && key.Value != attestKey {
			return nil, unknownKey(path, key)
		}
		value, err := fileValue(path, key, node)
		if err != nil {
			return nil, err
		}
		if value == nil {
			return nil, fault.New(fault.InvalidConfig, "%s:%d: %s has no value", path, key.Line, key.Value).WithField(key.Value).
				WithHint("give it one, or drop the line")
		}
		if _, twice := settings[key.Value]; twice {
			return nil, fault.New(fault.InvalidConfig, "%s:%d: %s is set twice", path, key.Line, key.Value).WithField(key.Value).
				WithHint("keep one of the two")
		}
		settings[key.Value] = value
	}
	return settings, nil
}

// fileValue returns one value, or the section of what is attested.
func fileValue(path string, key, node *yaml.Node) (value any, err error) {
	if key.Value == attestKey && node.Tag != "!!null" {
		return readAttest(path, node)
	}
	if err := node.Decode(&value); err != nil {
		return nil, fault.Wrap(fault.InvalidConfig, err, "%s:%d: %s", path, key.Line, key.Value).WithField(key.Value)
	}
	return value, nil
}

// checkVersion refuses a file written for a newer dropctl, whose settings could mean something else.
func checkVersion(path string, node *yaml.Node) error {
	version, err := strconv.Atoi(node.Value)
	if err != nil || version < 1 {
		return fault.New(fault.InvalidConfig, "%s:%d: version %q is not a number", path, node.Line, node.Value).WithField("version").
			WithHint("write: version: %d", fileVersion)
	}
	if version > fileVersion {
		return fault.New(fault.InvalidConfig, "%s has version %d, this dropctl reads up to %d", path, version, fileVersion).WithField("version").
			WithHint("use a newer dropctl, or another file: --config PATH")
	}
	return nil
}

func known(name string) bool {
	for _, s := range settings {
		if s.Name == name {
			return true
		}
	}
	return false
}

func unknownKey(path string, key *yaml.Node) error {
	var names []string
	for _, s := range settings {
		names = append(names, s.Name)
	}
	err := fault.New(fault.InvalidConfig, "%s:%d: unknown setting %q", path, key.Line, key.Value).WithField(key.Value)
	if near := fault.Nearest(key.Value, names); near != "" {
		return err.WithHint("did you mean %s?", near)
	}
	return err.WithHint("a list of all settings: dropctl help environment")
}

// readLimit is how long a small file may take: a pipe that nobody writes to must not hold up the command.
const readLimit = 5 * time.Second

// readSmall reads a file that must be small: a device or a wrong path shall not fill the memory, nor a pipe wait for ever.
func readSmall(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return nil, errors.New(path + " is a folder")
	}
	type content struct {
		data []byte
		err  error
	}
	done := make(chan content, 1)
	go func() {
		file, err := os.Open(path)
		if err != nil {
			done <- content{nil, err}
			return
		}
		defer func() { _ = file.Close() }()
		data, err := io.ReadAll(io.LimitReader(file, maxFileSize+1))
		done <- content{data, err}
	}()
	select {
	case c := <-done:
		if len(c.data) > maxFileSize {
			return nil, errors.New(path + " is larger than 1 MiB")
		}
		return c.data, c.err
	case <-time.After(readLimit):
		return nil, errors.New(path + " gave nothing within 5 seconds")
	}
}
