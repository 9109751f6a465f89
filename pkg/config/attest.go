package config

import (
	"go.yaml.in/yaml/v3"

	"github.com/dropctl/dropctl/pkg/fault"
)

const (
	attestKey  = "attest"
	attestSpot = "attest." // before a name, where settings are listed
)

// Attestations lists what an operator may vouch for in the config file, under attest: directives of a Redis that does
// not let dropctl read them, as managed ones do not. What the server tells itself is always believed first.
func Attestations() []Setting {
	return []Setting{
		{Name: "redis-maxmemory-policy", Choices: []string{"noeviction"}, Usage: "what Redis does when its memory is full"},
		{Name: "redis-appendfsync", Choices: []string{"always", "everysec", "no"}, Usage: "when the append-only file is synced"},
		{Name: "redis-save", Usage: "when snapshots are written"},
		{Name: "redis-min-replicas-to-write", kind: count, Usage: "without how many replicas Redis stops"},
		{Name: "redis-notify-keyspace-events", Usage: "which events of keys Redis tells"},
		{Name: "redis-cluster-require-full-coverage", Choices: []string{"yes", "no"}, Usage: "whether a cluster stops when one of its servers is gone"},
	}
}

// readAttest reads the section of the config file.
func readAttest(path string, section *yaml.Node) (map[string]string, error) {
	if section.Kind != yaml.MappingNode {
		return nil, fault.New(fault.InvalidConfig, "%s:%d: %s takes lines of the form name: value", path, section.Line, attestKey).WithField(attestKey).
			WithHint("a list of all settings: dropctl help files")
	}
	attested := map[string]string{}
	for i := 0; i+1 < len(section.Content); i += 2 {
		key, value := section.Content[i], section.Content[i+1]
		s, err := attestation(path, key)
		if err != nil {
			return nil, err
		}
		if _, twice := attested[s.Name]; twice {
			return nil, fault.New(fault.InvalidConfig, "%s:%d: %s is attested twice", path, key.Line, s.Name).WithField(s.Name).
				WithHint("keep one of the two")
		}
		if value.Kind != yaml.ScalarNode || value.Tag == "!!null" {
			return nil, fault.New(fault.InvalidConfig, "%s:%d: %s takes one value", path, key.Line, s.Name).WithField(s.Name).
				WithHint("write the value that Redis has, as CONFIG GET would show it")
		}
		if _, err := s.parse(value.Value); err != nil {
			return nil, fault.Wrap(fault.InvalidConfig, err, "%s:%d: %s", path, key.Line, s.Name).WithField(s.Name)
		}
		attested[s.Name] = value.Value
	}
	return attested, nil
}

func attestation(path string, key *yaml.Node) (Setting, error) {
	var names []string
	for _, s := range Attestations() {
		if s.Name == key.Value {
			return s, nil
		}
		names = append(names, s.Name)
	}
	err := fault.New(fault.InvalidConfig, "%s:%d: %q cannot be attested", path, key.Line, key.Value).WithField(key.Value)
	if near := fault.Nearest(key.Value, names); near != "" {
		return Setting{}, err.WithHint("did you mean %s?", near)
	}
	return Setting{}, err.WithHint("what can be: dropctl help files")
}
