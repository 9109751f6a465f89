package config

import "time"

// settings is the table of settings in the order help shows them.
var settings = []Setting{
	// For every command.
	{Name: "output", Short: "o", Default: "table", Choices: []string{"table", "wide", "json", "jsonl", "yaml", "name", "none"}, Usage: "output format"},
	{Name: "color", Default: "auto", Choices: []string{"auto", "always", "never"}, Usage: "when to use colour"},
	{Name: "quiet", Short: "q", kind: boolean, Usage: "print results and errors only"},
	{Name: "verbose", Short: "v", kind: boolean, Usage: "log what is being done"},
	{Name: "debug", kind: boolean, Usage: "log everything, with a stack trace for a crash"},
	{Name: "yes", Short: "y", kind: boolean, Usage: "answer every question with yes"},
	{Name: "no-input", kind: boolean, Usage: "never ask; a question becomes an error"},
	{Name: "timeout", kind: duration, Default: "10s", min: int64(time.Millisecond), Usage: "how long to wait for a server"},
	{Name: "actor", Usage: "who is acting, for the journal (default: user@host)"},
	{Name: "log-level", Default: "info", Choices: []string{"debug", "info", "warn", "error"}, Usage: "least level that is logged"},
	{Name: "log-format", Default: "text", Choices: []string{"text", "json"}, Usage: "how log lines are written"},

	// How to reach the stores and the HTTP API.
	{Name: "redis-url", Group: Redis, kind: url, Usage: "Redis: redis:// rediss:// unix:// redis-sentinel:// redis-cluster://"},
	{Name: "redis-username", Group: Redis, Usage: "Redis ACL user, if the URL names none"},
	{Name: "redis-password-file", Group: Redis, Usage: "file holding the Redis password"},
	{Name: "redis-dial-timeout", Group: Redis, kind: duration, Default: "1s", min: int64(time.Millisecond), Usage: "how long connecting to Redis may take"},
	{Name: "redis-timeout", Group: Redis, kind: duration, Default: "2s", min: int64(time.Millisecond), Usage: "how long one call to Redis may take"},
	{Name: "database-url", Group: Database, kind: url, Usage: "PostgreSQL: postgres://user@host:port/database"},
	{Name: "database-password-file", Group: Database, Usage: "file holding the PostgreSQL password (PGPASSFILE works too)"},
	{Name: "server", Group: API, kind: url, Usage: "base URL of the HTTP API"},
	{Name: "api-key-file", Group: API, Usage: "file holding the API key"},
	{Name: "api-key", Group: Unflagged, kind: secret, Usage: "the API key, or env:NAME or file:/path; not a flag, which every user of the machine could read"},

	// How the server listens, and whom it limits.
	{Name: "listen", Group: Serving, Default: "127.0.0.1:8080", Usage: "address the HTTP API listens on"},
	{Name: "tls-cert-file", Group: Serving, Usage: "PEM certificate to serve HTTPS with; a new one is taken up by itself"},
	{Name: "tls-key-file", Group: Serving, Usage: "PEM private key of the certificate"},
	{Name: "drain-limit", Group: Serving, kind: duration, Default: "25s", min: int64(time.Millisecond), Usage: "how long requests may take to end once the server stops"},
	{Name: "ledger-wait", Group: Serving, kind: duration, Default: "2s", min: int64(time.Millisecond), Usage: "how long a confirm waits for the ledger's word"},
	{Name: "queue", Group: Serving, kind: count, Default: "4096", min: 1, max: 1_000_000, Usage: "requests within the engine at once; more are refused at once"},
	{Name: "max-streams", Group: Serving, kind: count, Default: "1000", min: 1, max: 1_000_000, Usage: "open streams of availability"},
	{Name: "api-keys-file", Group: Serving, Usage: "file of API keys, as dropctl key list -o json prints it; counts beside PostgreSQL"},
	{Name: "limit-key", Group: Serving, kind: frequency, Default: "0", Usage: "requests each API key may make, such as 500/s or 9000/m; 0: any number"},
	{Name: "limit-user", Group: Serving, kind: frequency, Default: "20/s", Usage: "reservations each user may ask for; 0: any number"},
	{Name: "limit-address", Group: Serving, kind: frequency, Default: "0", Usage: "requests each client address (of IPv6: /64) may make; 0: any number"},
	{Name: "limit-tracked", Group: Serving, kind: count, Default: "100000", min: 1000, max: 10_000_000, Usage: "keys, users and addresses whose rate is remembered at once, of each"},
	{Name: "trusted-proxies", Group: Serving, kind: networks, Usage: "addresses or networks, separated by commas, whose X-Forwarded-For and Forwarded count"},
	{Name: "metrics-lots", Group: Metrics, kind: count, Default: "100", max: 10_000, Usage: "lots with gauges of their own among the metrics"},

	// How Redis keeps a drop, and how the worker carries it into the ledger.
	{Name: "shards", Group: First, kind: count, Default: "16", min: 1, max: 16384, Usage: "shards in Redis, fixed at the first migration"},
	{Name: "key-retention", Group: Stock, kind: duration, Default: "24h", min: int64(time.Minute), Usage: "how long an ended reservation still answers to its key"},
	{Name: "outbox-max-bytes", Group: Stock, kind: size, Default: "64MiB", min: 1 << 16, Usage: "outbox ceiling of each shard, above it nothing is reserved"},
	{Name: "durability", Group: Durable, kind: level, Default: "memory", Usage: "what a change outlives once it is answered: memory, disk or replicas=N"},
	{Name: "durability-wait", Group: Durable, kind: duration, Default: "1.5s", min: int64(time.Millisecond), Usage: "how long a change may wait for disk or replicas"},
	{Name: "transport", Group: Work, Default: Direct, Choices: []string{Direct, Kafka, CloudTasks}, Usage: "how events travel from Redis to the ledger"},
	{Name: "outbox-keep", Group: Work, kind: duration, Default: "15m", Usage: "how long Redis keeps events that the ledger already has"},
	{Name: "max-events-per-second", Group: Work, kind: count, Default: "2000", min: 1, Usage: "how fast events are applied to the ledger, over all workers"},

	// With --transport cloudtasks.
	{Name: "tasks-queue", Group: Tasks, Usage: "queue of Cloud Tasks: projects/PROJECT/locations/LOCATION/queues/QUEUE"},
	{Name: "tasks-endpoint", Group: Tasks, Default: "https://cloudtasks.googleapis.com", Usage: "address of Cloud Tasks; plain http:// is an emulator, which is shown no credentials"},
	{Name: "tasks-target", Group: Tasks, Usage: "where tasks are delivered to: https://HOST/internal/outbox of a server"},
	{Name: "tasks-service-account", Group: Tasks, Usage: "e-mail address of the service account in whose name tasks are delivered"},
	{Name: "tasks-audience", Group: Tasks, Usage: "whom the tokens of deliveries are for (default: --tasks-target)"},
	{Name: "tasks-keys-url", Group: Tasks, Default: "https://www.googleapis.com/oauth2/v3/certs", Usage: "where the keys are published that those tokens are signed with"},
	{Name: "tasks-secret-file", Group: Tasks, Usage: "file of secrets that deliveries may come with instead of a token, one a line; the first is sent"},
	{Name: "tasks-per-second", Group: Tasks, kind: count, Default: "500", min: 1, max: 500, Usage: "tasks that a worker creates at most; a queue delivers no more than 500/s"},

	// With --transport kafka.
	{Name: "kafka-brokers", Group: Broker, Usage: "Kafka or Redpanda brokers, host:port separated by commas"},
	{Name: "kafka-topic", Group: Broker, Default: "dropctl-events", Usage: "topic of the events, made if there is none"},
	{Name: "kafka-group", Group: Broker, Default: "dropctl", Usage: "consumer group of the workers"},
	{Name: "kafka-replicas", Group: Broker, kind: count, Default: "0", max: 100, Usage: "copies of a topic that is made; 0: as the cluster does by default"},
	{Name: "kafka-tls", Group: Broker, kind: boolean, Usage: "speak TLS with the brokers; implied by the files below"},
	{Name: "kafka-ca-file", Group: Broker, Usage: "PEM certificates to trust instead of the system's"},
	{Name: "kafka-cert-file", Group: Broker, Usage: "PEM certificate to show to the brokers"},
	{Name: "kafka-key-file", Group: Broker, Usage: "PEM private key of that certificate"},
	{Name: "kafka-sasl", Group: Broker, Default: "none", Choices: []string{"none", "plain", "scram-sha-256", "scram-sha-512"}, Usage: "how to log in"},
	{Name: "kafka-username", Group: Broker, Usage: "user to log in as"},
	{Name: "kafka-password-file", Group: Broker, Usage: "file holding the user's password"},
	{Name: "kafka-password", Group: Unflagged, kind: secret, Usage: "the password, or env:NAME or file:/path; not a flag, which every user of the machine could read"},

	// When being behind is a finding.
	{Name: "max-lag", Group: Lag, kind: duration, Default: "60s", Usage: "how far the ledger may be behind before it is a finding"},

	// Who charges.
	{Name: "payment", Group: Paying, Default: "none", Choices: []string{"none", "webhook"}, Usage: "who charges for confirmed reservations: none (the shop, before it confirms) or webhook"},
	{Name: "payment-url", Group: Paying, kind: url, Usage: "payment gateway of --payment webhook: https://HOST/PATH"},
	{Name: "payment-timeout", Group: Paying, kind: duration, Default: "30s", min: int64(time.Millisecond), max: int64(10 * time.Minute), Usage: "how long the payment gateway may take to answer"},
	{Name: "payment-secret", Group: Unflagged, kind: secret, Usage: "what calls to and from the payment gateway are signed with, or env:NAME or file:/path; not a flag, which every user of the machine could read"},
}
