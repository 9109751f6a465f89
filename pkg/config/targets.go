package config

import (
	"strings"

	"github.com/dropctl/dropctl/pkg/fault"
)

// RedisTarget says how to reach Redis. The password applies where the URL has none.
type RedisTarget struct {
	URL      Secret
	Username string
	Password Secret
}

// DatabaseTarget says how to reach PostgreSQL. The password applies where the URL has none.
type DatabaseTarget struct {
	URL      Secret
	Password Secret
}

// APITarget says how to reach the HTTP API.
type APITarget struct {
	URL Secret
	Key Secret
}

// Redis returns the Redis to use, references followed. There is no default server: without a URL it
// fails with code usage, for a reference or file that leads nowhere with invalid_config.
func (c *Config) Redis(getenv func(string) string) (RedisTarget, error) {
	u, err := target("redis-url", "Redis", c.RedisURL, getenv)
	if err != nil {
		return RedisTarget{}, err
	}
	password, err := secretFile("redis-password-file", c.RedisPasswordFile)
	return RedisTarget{URL: u, Username: c.RedisUsername, Password: password}, err
}

// Database returns the PostgreSQL to use, with the errors of Redis.
func (c *Config) Database(getenv func(string) string) (DatabaseTarget, error) {
	u, err := target("database-url", "PostgreSQL", c.DatabaseURL, getenv)
	if err != nil {
		return DatabaseTarget{}, err
	}
	password, err := secretFile("database-password-file", c.DatabasePasswordFile)
	return DatabaseTarget{URL: u, Password: password}, err
}

// API returns the HTTP API to use, with the errors of Redis.
func (c *Config) API(getenv func(string) string) (APITarget, error) {
	u, err := target("server", "the API", c.ServerURL, getenv)
	if err != nil {
		return APITarget{}, err
	}
	key, err := secretFile("api-key-file", c.APIKeyFile)
	return APITarget{URL: u, Key: key}, err
}

func target(setting, what string, value Secret, getenv func(string) string) (Secret, error) {
	if !value.IsSet() {
		return Secret{}, fault.New(fault.Usage, "no %s is named", what).WithField(setting).
			WithHint("name it with --%s, %s or %s in the config file", setting, EnvName(setting), setting)
	}
	text, err := follow(setting, value.Reveal(), getenv)
	return NewURL(text), err
}

const (
	envReference  = "env:"
	fileReference = "file:"
)

func isReference(value string) bool {
	return strings.HasPrefix(value, envReference) || strings.HasPrefix(value, fileReference)
}

// follow returns what a reference points at, and any other value as it is.
func follow(setting, value string, getenv func(string) string) (string, error) {
	if name, ok := strings.CutPrefix(value, envReference); ok {
		if found := getenv(name); found != "" {
			return found, nil
		}
		return "", fault.New(fault.InvalidConfig, "%s refers to the environment variable %s, which is not set", setting, name).
			WithField(setting).WithHint("set %s, or see where the reference comes from: dropctl config view --origin", name)
	}
	if path, ok := strings.CutPrefix(value, fileReference); ok {
		s, err := secretFile(setting, strings.TrimPrefix(path, "//"))
		return s.Reveal(), err
	}
	return value, nil
}

// secretFile reads a secret from a file; one line end at its end is not part of it. No path, no secret.
func secretFile(setting, path string) (Secret, error) {
	if path == "" {
		return Secret{}, nil
	}
	data, err := readSmall(path)
	if err != nil {
		return Secret{}, fault.Wrap(fault.InvalidConfig, err, "%s", setting).WithField(setting).
			WithHint("check that the file exists and that this user may read it")
	}
	text := strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r")
	if text == "" {
		return Secret{}, fault.New(fault.InvalidConfig, "%s: %s is empty", setting, path).WithField(setting).
			WithHint("write the secret into it")
	}
	return NewSecret(text), nil
}
