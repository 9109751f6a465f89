package config

import (
	"strings"
	"time"

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
	u, err := c.target("redis-url", "Redis", c.RedisURL, getenv)
	if err != nil {
		return RedisTarget{}, err
	}
	password, err := secretFile("redis-password-file", c.RedisPasswordFile)
	return RedisTarget{URL: u, Username: c.RedisUsername, Password: password}, err
}

// Database returns the PostgreSQL to use, with the errors of Redis.
func (c *Config) Database(getenv func(string) string) (DatabaseTarget, error) {
	u, err := c.target("database-url", "PostgreSQL", c.DatabaseURL, getenv)
	if err != nil {
		return DatabaseTarget{}, err
	}
	password, err := secretFile("database-password-file", c.DatabasePasswordFile)
	return DatabaseTarget{URL: u, Password: password}, err
}

// BrokerTarget says how to reach Kafka.
type BrokerTarget struct {
	Brokers  []string
	Password Secret
}

// Broker returns the Kafka to use, with the errors of Redis. Of the two places of a password the better one counts, as for
// the API's key.
func (c *Config) Broker(getenv func(string) string) (BrokerTarget, error) {
	if c.KafkaBrokers == "" {
		return BrokerTarget{}, fault.New(fault.Usage, "no Kafka broker is named").WithField("kafka-brokers").
			WithHint("name some with --kafka-brokers, %s or kafka-brokers in the config file", EnvName("kafka-brokers"))
	}
	t := BrokerTarget{}
	for broker := range strings.SplitSeq(c.KafkaBrokers, ",") {
		t.Brokers = append(t.Brokers, strings.TrimSpace(broker))
	}
	var err error
	if c.KafkaPassword.IsSet() && c.rank("kafka-password") > c.rank("kafka-password-file") {
		var password string
		password, err = follow("kafka-password", c.KafkaPassword.Reveal(), getenv)
		t.Password = NewSecret(password)
	} else {
		t.Password, err = secretFile("kafka-password-file", c.KafkaPasswordFile)
	}
	return t, err
}

// API returns the HTTP API to use, with the errors of Redis. A key file beats a key that does not come from a better
// place, as a flag beats the environment.
func (c *Config) API(getenv func(string) string) (APITarget, error) {
	u, err := c.target("server", "the API", c.ServerURL, getenv)
	if err != nil {
		return APITarget{}, err
	}
	if c.APIKey.IsSet() && c.rank("api-key") > c.rank("api-key-file") {
		key, err := follow("api-key", c.APIKey.Reveal(), getenv)
		return APITarget{URL: u, Key: NewSecret(key)}, err
	}
	key, err := secretFile("api-key-file", c.APIKeyFile)
	return APITarget{URL: u, Key: key}, err
}

// TasksSecrets returns the secrets that deliveries of tasks may come with, one a line of their file, with the errors of
// Redis.
func (c *Config) TasksSecrets() ([]string, error) {
	text, err := secretFile("tasks-secret-file", c.TasksSecretFile)
	return strings.Fields(text.Reveal()), err
}

// PaymentTarget says how to reach the payment gateway.
type PaymentTarget struct {
	URL     Secret
	Secret  Secret
	Timeout time.Duration
}

// Gateway returns the payment gateway to use, references followed; false if the shop is paid before it confirms. It fails
// with code usage if the gateway is not named, for a reference that leads nowhere with invalid_config.
func (c *Config) Gateway(getenv func(string) string) (PaymentTarget, bool, error) {
	if c.Payment != "webhook" {
		return PaymentTarget{}, false, nil
	}
	u, err := c.target("payment-url", "payment gateway", c.PaymentURL, getenv)
	if err != nil {
		return PaymentTarget{}, false, err
	}
	signed, err := follow("payment-secret", c.PaymentSecret.Reveal(), getenv)
	if err == nil && signed == "" {
		err = fault.New(fault.Usage, "payment-secret is not set, and --payment webhook signs with it").WithField("payment-secret").
			WithHint("set %s, or payment-secret in the config file, also as env:NAME or file:/path", EnvName("payment-secret"))
	}
	if err == nil && len(signed) < shortestSecret {
		err = fault.New(fault.InvalidConfig, "payment-secret is shorter than %d characters: who guesses it can say that everything is paid", shortestSecret).
			WithField("payment-secret").WithHint("make a random one: openssl rand -hex 32")
	}
	return PaymentTarget{URL: u, Secret: NewSecret(signed), Timeout: c.PaymentTimeout}, err == nil, err
}

// shortestSecret is how long a secret is at least that calls are signed with.
const shortestSecret = 16

// UsesServer reports whether a command goes through the HTTP API rather than to the stores: whichever is named in the
// better place, a flag before the environment before the config file. In the same place the stores count, if the one
// that the command needs is named at all. It fails with code usage for flags that do not go together.
func (c *Config) UsesServer(needed string) (bool, error) {
	server, stores := c.rank("server"), max(c.rank("redis-url"), c.rank("database-url"))
	if server == 0 || server < stores || server == stores && server < typed && c.rank(needed) > 0 {
		return false, nil
	}
	for _, s := range settings {
		switch s.Group {
		case Redis, Database, Stock, Durable:
			if c.rank(s.Name) == typed {
				return false, fault.New(fault.Usage, "--%s does not go with a server, which has its own stores", s.Name).WithField(s.Name).
					WithHint("name either the server (%s) or the stores", c.Origin("server"))
			}
		}
	}
	return true, nil
}

// typed is the rank of a flag.
const typed = 3

// rank tells how good the place is that a setting comes from; 0: nobody set it.
func (c *Config) rank(name string) int {
	origin := c.Origin(name)
	switch {
	case strings.HasPrefix(origin, fromFlag):
		return typed
	case strings.HasPrefix(origin, fromEnv):
		return 2
	case strings.HasPrefix(origin, fromFile):
		return 1
	}
	return 0
}

func (c *Config) target(setting, what string, value Secret, getenv func(string) string) (Secret, error) {
	if !value.IsSet() {
		more := "; dropctl lab runs private servers to try things with"
		switch {
		case setting == "payment-url":
			more = ""
		case c.rank("server") > 0:
			more = "; this does not go through a server (dropctl help server)"
		}
		return Secret{}, fault.New(fault.Usage, "no %s is named", what).WithField(setting).
			WithHint("name it with --%s, %s or %s in the config file%s", setting, EnvName(setting), setting, more)
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

// ReadReference reads the secret that a flag's value points at. The value itself is never one: every user of the machine
// could read it. Errors: fault.Usage for a value that is no reference, fault.InvalidConfig for one that leads nowhere.
func ReadReference(flag, value string, getenv func(string) string) (Secret, error) {
	if !isReference(value) {
		return Secret{}, fault.New(fault.Usage, "--%s is not a reference", flag).WithField(flag).
			WithHint("say where the secret is, with --%s env:NAME or --%s file:/path: every user of the machine can read what is typed here", flag, flag)
	}
	text, err := follow(flag, value, getenv)
	return NewSecret(text), err
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
	if strings.TrimSpace(text) == "" {
		return Secret{}, fault.New(fault.InvalidConfig, "%s: %s is empty", setting, path).WithField(setting).
			WithHint("write the secret into it")
	}
	return NewSecret(text), nil
}
