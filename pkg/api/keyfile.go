package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// maxKeyFile bounds the file of keys: some thousands of them.
const maxKeyFile = 4 << 20

// readKeyFile reads the keys of a file, all or none: a key whose end was misspelt would be good for ever. It has no secret.
func readKeyFile(path string) ([]drop.APIKey, error) {
	data, err := readRegular(path)
	if err != nil {
		return nil, badKeyFile(err, path)
	}
	var keys []drop.APIKey
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&keys); err != nil {
		return nil, badKeyFile(err, path)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, badKeyFile(errors.New("there is more behind the list"), path)
	}
	seen := make(map[string]bool, len(keys))
	for _, k := range keys {
		if err := k.Check(); err != nil {
			return nil, badKeyFile(err, path)
		}
		if seen[k.ID] {
			return nil, badKeyFile(errors.New("the key "+k.ID+" is there twice"), path)
		}
		seen[k.ID] = true
	}
	return keys, nil
}

// readRegular reads a file, but no pipe or device, which may never end.
func readRegular(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errors.New("it is no file")
	case info.Size() > maxKeyFile:
		return nil, errors.New("it is larger than 4 MiB")
	}
	return os.ReadFile(path)
}

func badKeyFile(err error, path string) error {
	return fault.Wrap(fault.InvalidConfig, err, "the file of API keys %s cannot be used", path).WithField("api-keys-file").
		WithHint("write it anew: dropctl key list -o json > %s", path)
}
