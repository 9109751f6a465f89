package config

import (
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// Config holds every setting, resolved. It is a value and never changes after Resolve.
//
// The secrets and URLs in it may be references; Redis, Database and API follow them.
type Config struct {
	RedisURL             Secret        `mapstructure:"redis-url"`
	RedisUsername        string        `mapstructure:"redis-username"`
	RedisPasswordFile    string        `mapstructure:"redis-password-file"`
	RedisDialTimeout     time.Duration `mapstructure:"redis-dial-timeout"`
	RedisTimeout         time.Duration `mapstructure:"redis-timeout"`
	DatabaseURL          Secret        `mapstructure:"database-url"`
	DatabasePasswordFile string        `mapstructure:"database-password-file"`
	ServerURL            Secret        `mapstructure:"server"`
	APIKeyFile           string        `mapstructure:"api-key-file"`
	APIKey               Secret        `mapstructure:"api-key"`
	Listen               string        `mapstructure:"listen"`
	TLSCertFile          string        `mapstructure:"tls-cert-file"`
	TLSKeyFile           string        `mapstructure:"tls-key-file"`
	DrainLimit           time.Duration `mapstructure:"drain-limit"`
	LedgerWait           time.Duration `mapstructure:"ledger-wait"`
	Queue                int           `mapstructure:"queue"`
	MaxStreams           int           `mapstructure:"max-streams"`
	APIKeysFile          string        `mapstructure:"api-keys-file"`
	LimitKey             Rate          `mapstructure:"limit-key"`
	LimitUser            Rate          `mapstructure:"limit-user"`
	LimitAddress         Rate          `mapstructure:"limit-address"`
	LimitTracked         int           `mapstructure:"limit-tracked"`
	TrustedProxies       Networks      `mapstructure:"trusted-proxies"`
	MetricsLots          int           `mapstructure:"metrics-lots"`
	Timeout              time.Duration `mapstructure:"timeout"`
	Actor                string        `mapstructure:"actor"`
	Shards               int           `mapstructure:"shards"`
	KeyRetention         time.Duration `mapstructure:"key-retention"`
	Durability           string        `mapstructure:"durability"`
	DurabilityWait       time.Duration `mapstructure:"durability-wait"`
	OutboxKeep           time.Duration `mapstructure:"outbox-keep"`
	OutboxMaxBytes       Bytes         `mapstructure:"outbox-max-bytes"`
	MaxEventsPerSecond   int           `mapstructure:"max-events-per-second"`
	Transport            string        `mapstructure:"transport"`
	KafkaBrokers         string        `mapstructure:"kafka-brokers"`
	KafkaTopic           string        `mapstructure:"kafka-topic"`
	KafkaGroup           string        `mapstructure:"kafka-group"`
	KafkaReplicas        int           `mapstructure:"kafka-replicas"`
	KafkaTLS             bool          `mapstructure:"kafka-tls"`
	KafkaCAFile          string        `mapstructure:"kafka-ca-file"`
	KafkaCertFile        string        `mapstructure:"kafka-cert-file"`
	KafkaKeyFile         string        `mapstructure:"kafka-key-file"`
	KafkaSASL            string        `mapstructure:"kafka-sasl"`
	KafkaUsername        string        `mapstructure:"kafka-username"`
	KafkaPasswordFile    string        `mapstructure:"kafka-password-file"`
	KafkaPassword        Secret        `mapstructure:"kafka-password"`
	MaxLag               time.Duration `mapstructure:"max-lag"`
	TasksQueue           string        `mapstructure:"tasks-queue"`
	TasksEndpoint        string        `mapstructure:"tasks-endpoint"`
	TasksTarget          string        `mapstructure:"tasks-target"`
	TasksServiceAccount  string        `mapstructure:"tasks-service-account"`
	TasksAudience        string        `mapstructure:"tasks-audience"`
	TasksKeysURL         string        `mapstructure:"tasks-keys-url"`
	TasksSecretFile      string        `mapstructure:"tasks-secret-file"`
	TasksPerSecond       int           `mapstructure:"tasks-per-second"`
	Payment              string        `mapstructure:"payment"`
	PaymentURL           Secret        `mapstructure:"payment-url"`
	PaymentSecret        Secret        `mapstructure:"payment-secret"`
	PaymentTimeout       time.Duration `mapstructure:"payment-timeout"`
	Output               string        `mapstructure:"output"`
	Color                string        `mapstructure:"color"`
	LogLevel             string        `mapstructure:"log-level"`
	LogFormat            string        `mapstructure:"log-format"`
	NoInput              bool          `mapstructure:"no-input"`
	Yes                  bool          `mapstructure:"yes"`
	Quiet                bool          `mapstructure:"quiet"`
	Verbose              bool          `mapstructure:"verbose"`
	Debug                bool          `mapstructure:"debug"`

	// Attested is what an operator vouches for where a server does not tell (see Attestations).
	Attested map[string]string `mapstructure:"-"`

	origins map[string]string
}

// Group says which commands take a setting as a flag. Environment and file always count.
type Group int

// The groups. A command registers those it needs; Global is registered on the root for all of them.
const (
	Global    Group = iota
	Redis           // how to reach Redis
	Database        // how to reach PostgreSQL
	API             // how to reach the HTTP API
	Serving         // how to listen
	Metrics         // what is shown to Prometheus
	Stock           // how Redis keeps a drop
	Durable         // what a change has outlived when it is answered
	Work            // how the worker works
	Tasks           // the queue of Cloud Tasks, and what it delivers
	Broker          // how to reach Kafka
	Lag             // when being behind is a finding
	Paying          // who charges for what is confirmed
	First           // read once, when the schema is first created
	Unflagged       // never a flag: every user of the machine could read it
)

// The transports.
const (
	Direct     = "direct"
	Kafka      = "kafka"
	CloudTasks = "cloudtasks"
)

type kind int

const (
	text kind = iota
	url
	duration
	size
	count
	boolean
	level
	secret
	frequency
	networks
)

// Setting is one row of the table of settings.
type Setting struct {
	Name    string // the flag, and the key in the config file
	Short   string // one letter, or empty
	Group   Group
	Default string
	Choices []string // the only allowed values, if there are such
	Usage   string
	kind    kind
	min     int64 // smallest allowed: nanoseconds, bytes or a count
	max     int64 // largest allowed; 0: no limit
}

// Words returns what a shell may offer as values; nil if it cannot know.
func (s Setting) Words() []string {
	if s.kind == level {
		return []string{"memory", "disk", "replicas=1"}
	}
	return s.Choices
}

// Env returns the environment variable of the setting.
func (s Setting) Env() string { return EnvName(s.Name) }

// EnvName returns the environment variable behind a flag: --max-lag is DROPCTL_MAX_LAG.
func EnvName(flag string) string {
	return "DROPCTL_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// Settings returns the table of settings in the order help shows them.
func Settings() []Setting { return slices.Clone(settings) }

// AddFlags registers the settings of the groups as flags.
func AddFlags(flags *pflag.FlagSet, groups ...Group) {
	for _, s := range settings {
		for _, g := range groups {
			if s.Group == g {
				s.addFlag(flags)
			}
		}
	}
}

// addFlag keeps every value as text, so that flag, environment and file are checked by the same code.
func (s Setting) addFlag(flags *pflag.FlagSet) {
	value := &flagValue{text: s.Default, kind: s.typeName()}
	flag := flags.VarPF(value, s.Name, s.Short, s.Usage)
	if s.kind == boolean {
		flag.NoOptDefVal = "true"
	}
}

func (s Setting) typeName() string {
	switch s.kind {
	case url:
		return "URL"
	case duration:
		return "duration"
	case size:
		return "size"
	case count:
		return "int"
	case boolean:
		return "bool"
	case level:
		return "LEVEL"
	case frequency:
		return "RATE"
	case networks:
		return "NETWORKS"
	}
	if s.Choices != nil {
		return "WORD"
	}
	if strings.HasSuffix(s.Name, "-file") {
		return "FILE"
	}
	return "string"
}

type flagValue struct{ text, kind string }

func (v *flagValue) String() string     { return v.text }
func (v *flagValue) Set(s string) error { v.text = s; return nil }
func (v *flagValue) Type() string       { return v.kind }
