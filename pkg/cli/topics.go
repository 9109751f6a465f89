package cli

import (
	"strings"

	"github.com/dropctl/dropctl/pkg/bench"
	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/fault"
)

// topic is a page of `dropctl help` that is about no single command.
type topic struct {
	name  string
	short string
	show  func(*app) error
}

var topics = []topic{
	{"environment", "every setting: flag, variable, default", showEnvironment},
	{"exit-codes", "what each exit status means", showExitCodes},
	{"formatting", "output formats, --fields and --jq", prose("formatting", formattingText)},
	{"files", "which files are read and written", prose("files", filesText)},
	{"server", "commands that go through the HTTP API", prose("server", serverText)},
	{"recovery", "what to do when something is wrong", prose("recovery", recoveryText)},
	{"measuring", "what a measurement tells, and what --fail-if can name", showMeasuring},
	{"words", "the words that dropctl uses", showWords},
}

func topicNames() []string {
	var names []string
	for _, t := range topics {
		names = append(names, t.name)
	}
	return names
}

type topicView struct {
	Topic string `json:"topic" table:"TOPIC,name"`
	Text  string `json:"text" table:"TEXT"`
}

func prose(name, text string) func(*app) error {
	return func(a *app) error {
		return a.out.Text(text, topicView{name, strings.TrimSpace(text)})
	}
}

// showMeasuring names what can be limited as the program knows it.
func showMeasuring(a *app) error {
	return prose("measuring", measuringText+"  "+wrap(strings.Join(bench.LimitNames(), ", "), 80, "  ")[2:]+"\n")(a)
}

type settingHelpView struct {
	Setting string   `json:"setting" table:"SETTING,name"`
	Flag    string   `json:"flag" table:"FLAG,wide"`
	Env     string   `json:"env" table:"VARIABLE"`
	Default string   `json:"default" table:"DEFAULT"`
	Choices []string `json:"choices" table:"CHOICES,wide"`
	Usage   string   `json:"usage" table:"MEANING"`
}

func showEnvironment(a *app) error {
	var list []settingHelpView
	for _, s := range config.Settings() {
		list = append(list, settingHelpView{s.Name, flagOf(s), s.Env(), s.Default, s.Choices, s.Usage})
	}
	a.note("A flag beats its variable, the variable beats the config file, that beats the default.")
	a.note("Every other flag has a variable as well: --dry-run is DROPCTL_DRY_RUN.")
	a.note("URLs may be references: env:NAME or file:/path. What is in force: dropctl config view --origin")
	return a.print(list)
}

// flagOf names a setting's flag; "" for one that must not be one.
func flagOf(s config.Setting) string {
	if s.Group == config.Unflagged {
		return ""
	}
	return "--" + s.Name
}

type exitView struct {
	Exit    fault.Exit `json:"exit" table:"EXIT"`
	Name    string     `json:"name" table:"NAME,name"`
	Meaning string     `json:"meaning" table:"MEANING"`
}

func showExitCodes(a *app) error {
	var list []exitView
	for _, e := range fault.Exits() {
		list = append(list, exitView(e))
	}
	return a.print(list)
}

type wordView struct {
	Word    string `json:"word" table:"WORD,name"`
	Meaning string `json:"meaning" table:"MEANING"`
}

func showWords(a *app) error { return a.print(words) }

var words = []wordView{
	{"lot", "a countable stock on sale, such as truffle-99; its id is [group:]name"},
	{"capacity", "how many units a lot has: always available + held + sold"},
	{"reservation", "the record of one attempt: held, then confirmed, released or expired; confirmed may become refunded"},
	{"hold", "a reservation in its first state"},
	{"user", "who holds"},
	{"key", "the caller's name for one attempt; the same key gives the same reservation"},
	{"deadline", "when a hold ends, in the time of Redis"},
	{"shard", "one of the parts that lots are spread over in Redis"},
	{"epoch", "one life of a lot in Redis, numbered by the ledger"},
	{"seq", "the number of a change of a lot"},
	{"watermark", "the epoch and seq up to which the ledger has a lot"},
	{"lag", "changes that the ledger does not have yet; normal"},
	{"drift", "a difference although both sides have the same changes; a finding"},
	{"frozen", "a lot or shard that Redis answers nothing for until it is compared or rebuilt"},
	{"stopped", "a lot whose events the ledger takes no more until it is rebuilt"},
	{"recorded", "in the ledger"},
	{"sale", "a row of the order ledger"},
	{"refund due", "money for units that nobody got"},
	{"hook", "a receiver on the web that is told what happens"},
	{"notice", "what a hook is told, such as sold_out"},
	{"outbox", "the events in Redis that the ledger has or will get"},
	{"ledger", "the tables in PostgreSQL; they decide"},
}

const formattingText = `Data goes to stdout, everything else to stderr.

  -o table   the default: aligned on a terminal; elsewhere one line each, separated
             by tabs, without colour
  -o wide    the same with every column
  -o json    one document with all fields; numbers are numbers, times are RFC 3339
             in UTC, durations are in seconds and end in _seconds, an empty list is []
  -o jsonl   one line for each element; commands that watch print a stream
  -o yaml    the same fields as YAML
  -o name    the names alone, for loops in a shell
  -o none    nothing; the exit status says it all

  --fields a,b    only these fields, in this order, in any format
  --jq EXPR       what a jq expression makes of the JSON; strings come without quotes
  --no-headers    tables without their header line

With -o json and -o jsonl an error is one JSON object on stderr, and stdout is empty:
  {"code": …, "message": …, "hint": …, "exit": …}

Colour: --color auto|always|never, then NO_COLOR (any value), CLICOLOR_FORCE (not 0),
TERM=dumb, and whether the stream is a terminal.

New fields may be added; ignore what you do not know.

Examples
  dropctl help exit-codes -o json
  dropctl explain --fields code,exit
  dropctl explain --jq '.[] | select(.exit == 5) | .code'
`

const filesText = `Read
  $XDG_CONFIG_HOME/dropctl/dropctl.yaml   settings (without XDG_CONFIG_HOME: ~/.config)
  /etc/dropctl/dropctl.yaml               settings, if the former does not exist
  the file of --config                    instead of both; --config none reads no file;
                                          commands that need no settings, such as version,
                                          only warn if it cannot be read
  files named by --redis-password-file, --database-password-file, --api-key-file,
  and by references such as --database-url file:/run/secrets/database-url
  PGPASSFILE or ~/.pgpass                 PostgreSQL passwords

A dropctl.yaml in the current folder is not read: a folder must not choose the
servers that a command changes.

The config file holds one setting a line, named like its flag:

  version: 1
  redis-url: rediss://shop@redis.example:6379/0
  redis-password-file: /run/secrets/redis
  database-url: env:SHOP_DATABASE_URL
  timeout: 5s

A managed Redis may hide its configuration. What dropctl doctor then does not know, you
can vouch for; what a server tells itself counts first:

  attest:
    redis-appendfsync: always
    redis-min-replicas-to-write: 1

also redis-maxmemory-policy, redis-save and redis-notify-keyspace-events.

Which file is in force: dropctl config path
What is in force, and why: dropctl config view --origin
`

const serverText = `Whoever has no access to the stores sells through a server (dropctl serve). With --server URL
these commands call it, with the same output and the same exit statuses:

  reserve, confirm, release, extend, refund, reservation list|show,
  lot list|show|open|pause|close|adjust

  export DROPCTL_SERVER=https://drops.example:8443
  export DROPCTL_API_KEY=file:/run/secrets/dropctl-key
  dropctl reserve truffle-99 --user ada

The key comes from --api-key-file, or from DROPCTL_API_KEY, which holds it or says where it
is: file:/path, env:NAME. It is never a flag. It names the tenant whose users and
reservations you see, and the scopes: read to look, reserve, settle, and admin for lots. The
journal names the key, not --actor.

Where both a server and the stores are named, the better place counts: a flag before the
environment before the config file. In the same place it is the stores.

What differs
  --dry-run of reserve, confirm, release, extend, refund and lot adjust needs the stores
  --durability and other settings of the stores are the server's
  reservation list shows a tenant's own
`

const recoveryText = `Redis admits, the ledger in PostgreSQL decides. Whatever happens to Redis, its lots can
be rebuilt from the ledger; nothing is ever sold again because Redis forgot it.

  1. See what is wrong, worst first          dropctl status
  2. Look a code or reason up                dropctl explain CODE
  3. Stop selling, if units are in doubt     dropctl lot pause LOT --reason TEXT
  4. Let the ledger catch up                 dropctl worker --until-idle
  5. Compare both sides                      dropctl reconcile LOT --deep
  6. Rebuild in Redis what differs           dropctl restore LOT

After a restart or failover of Redis every shard answers lot_frozen until a worker has
compared it with the ledger. What is equal sells again without anybody's help, and what lost
something is rebuilt first. A lot that needs you stays frozen alone and says why. A Redis
that lost all of its data gets it back, holds, sales and the answers to repeated requests
alike, from a worker that knew it or with dropctl restore --all. What was never recorded is
lost: it was admitted, not decided.

An event that cannot be recorded stops its lot and no other: dropctl outbox list shows it,
dropctl outbox retry tries it again, dropctl outbox discard gives it up. Where Redis is ahead
because its events were lost (redis_ahead), give up the gap and rebuild:

  dropctl outbox discard --lot LOT --gap --reason TEXT
  dropctl restore LOT

Whether the ledger itself was touched            dropctl ledger verify --all
Whose money has to be given back                 dropctl ledger show --refund-due

A call that ended in outcome_unknown may have been carried out. Repeat it with the same
key: it returns the same reservation and takes nothing twice.
`

const measuringText = `Which bench is which:

  engine   what Redis and PostgreSQL carry, from one process
  http     what a running server carries
  compare  other ways to sell a lot, on the same private servers
  bars     what dropctl promises of its own speed
  report   results of the others side by side, and drawn

Open loop (--rate): operations are due at a rate, whatever the answers, as people come. A time runs
from the moment at which an operation was due. Closed loop (--users): each user asks again once he
is answered. It finds the most that is answered, and hides how long people would wait: a server that
stands still is asked nothing meanwhile.

Refusals are counted apart from accepts, since they are quicker. Percentiles of several runs are
those of all answers: dropctl bench report merges the histograms.

What Redis and PostgreSQL did is counted for whomever: measure where nobody else is. PostgreSQL's
sessions report their transactions up to a second late, waits for locks are sampled 20 times a
second. Of whom the role may not see that they wait, nothing is said; grant pg_read_all_stats.

--fail-if 'NAME OP NUMBER', with < <= > >=, exits with 6 if it is so, or was not measured. Times
need a unit (ns, µs, ms, s); achieved, dropped and errors may be in %, of what was offered:

`
