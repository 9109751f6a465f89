package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// postgresRules are the checks of PostgreSQL. A rule whose question could not be answered is not asked.
var postgresRules = []struct {
	check    string
	question string // as Unknown names it; "": always answered
	judge    func(drop.LedgerHealth, Options) verdict
}{
	{"role", "", writable},
	{"version", "", postgresVersion},
	{"migrations", "migrations", migrated},
	{"timeouts", "", timeouts},
	{"triggers", "triggers", triggers},
	{"grants", "grants", grants},
	{"rights", "rights", rights},
	{"connections", "connections", connections},
	{"standby", "", synchronous},
	{"dead-letters", "dead letters", deadEvents},
	{"stopped-lots", "lots", stoppedLots},
	{"payments", "payments", payments},
	{"hooks", "hooks", hooks},
	{"workers", "workers", workers},
	{"throttle", "pace", throttle},
}

func (e *exam) postgres(target string, p drop.LedgerHealth, err error) {
	if err != nil {
		e.say("postgres", target, "reachable", unreachable(err))
		return
	}
	e.say("postgres", target, "reachable", good("it answers"))
	for _, rule := range postgresRules {
		if why := p.Unknown[rule.question]; why != "" {
			e.say("postgres", target, rule.check, notTold(why, unasked(p)))
			continue
		}
		e.say("postgres", target, rule.check, rule.judge(p, e.o))
	}
}

const migrateUp = "as the role that owns the schema: dropctl migrate up"

// unasked says what to do where a question could not be asked: without a schema most cannot.
func unasked(p drop.LedgerHealth) string {
	if len(p.Pending) > 0 {
		return migrateUp
	}
	return "let the owner of the schema grant the rights: dropctl migrate up --app-role ROLE"
}

func writable(p drop.LedgerHealth, _ Options) verdict {
	if p.Standby {
		return bad(standby, "name the primary in --database-url, or add target_session_attrs=read-write", "it is a standby: nothing can be recorded there")
	}
	return good("primary")
}

func postgresVersion(p drop.LedgerHealth, _ Options) verdict {
	if p.Number < 150000 {
		return bad(tooOld, "use PostgreSQL 15 or newer", "PostgreSQL %s", p.Version)
	}
	return good("PostgreSQL %s", p.Version)
}

func migrated(p drop.LedgerHealth, _ Options) verdict {
	switch {
	case len(p.Pending) > 0:
		return bad(notMigrated, migrateUp, "pending: %s", strings.Join(p.Pending, ", "))
	case len(p.Newer) > 0:
		return bad(newerSchema, "use the dropctl that migrated it", "the schema is newer than this program, by %d", len(p.Newer))
	}
	return good("none pending")
}

func timeouts(p drop.LedgerHealth, _ Options) verdict {
	var without []string
	for _, name := range []string{"statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"} {
		if is := p.Settings[name]; is == "0" || is == "" {
			without = append(without, name)
		}
	}
	if len(without) > 0 {
		return bad(noTimeout, "see what is between dropctl and PostgreSQL: a pooler may drop start-up parameters", "not in force: %s", strings.Join(without, ", "))
	}
	return good("statement %s, lock %s, idle %s", p.Settings["statement_timeout"], p.Settings["lock_timeout"], p.Settings["idle_in_transaction_session_timeout"])
}

func triggers(p drop.LedgerHealth, _ Options) verdict {
	if len(p.Unguarded) > 0 {
		return bad(noTrigger, "as the owner, make the missing triggers again as make_append_only does, then dropctl reconcile --deep",
			"history can be changed without a refusal in %s", some(p.Unguarded))
	}
	return good("journal and sales refuse changes, on every partition")
}

func grants(p drop.LedgerHealth, _ Options) verdict {
	if len(p.Lacking) > 0 {
		return bad(noRights, "let the owner of the schema grant what is missing: dropctl migrate up --app-role "+p.Role, "the role %s lacks %s", p.Role, some(p.Lacking))
	}
	return good("the role %s may do what it has to", p.Role)
}

func rights(p drop.LedgerHealth, _ Options) verdict {
	const fix = "run dropctl as a role of its own: dropctl migrate up --app-role ROLE"
	switch {
	case p.Superuser:
		return bad(owns, fix, "the role %s is a superuser", p.Role)
	case len(p.Owned) > 0:
		return bad(owns, fix, "the role %s owns %s", p.Role, some(p.Owned))
	case len(p.Changeable) > 0:
		return bad(owns, fix, "the role %s may change or delete history in %s", p.Role, some(p.Changeable))
	}
	return good("the role %s owns nothing", p.Role)
}

func connections(p drop.LedgerHealth, _ Options) verdict {
	say := fmt.Sprintf("%d of %d connections taken; a process of dropctl may open %d", p.Backends, p.MaxConns, p.PoolConns)
	const fix = "raise max_connections or the role's limit, or let fewer processes connect"
	switch free := p.MaxConns - p.Backends; {
	case free < p.PoolConns/4:
		return bad(noRoom, fix, "%s", say)
	case free < p.PoolConns:
		return bad(crowded, fix, "%s", say)
	}
	return good("%s", say)
}

// synchronous judges what a committed sale survives.
func synchronous(p drop.LedgerHealth, o Options) verdict {
	names, commit := p.Settings["synchronous_standby_names"], p.Settings["synchronous_commit"]
	switch {
	case p.Settings["fsync"] == "off" || p.Settings["full_page_writes"] == "off":
		return bad(commitLoses, "set fsync and full_page_writes on", "fsync or full_page_writes is off: a crash of the machine may destroy the ledger")
	case commit == "off":
		return bad(commitLoses, "set synchronous_commit on", "synchronous_commit is off: a crash may lose the last sales that were recorded")
	case names != "" && p.Replicas == 0:
		return bad(commitHangs, "bring the standby back, or empty synchronous_standby_names", "commits wait for a standby, and none is connected")
	case names != "" && commit != "local":
		return good("commits wait for a standby (%s)", commit)
	case p.Replicas > 0:
		return bad(asynchronous, "name a standby in synchronous_standby_names, or keep --outbox-keep longer than a standby can be behind",
			"%d standbys, commits wait for none: after a switch, what a standby lacked comes again out of the outbox if it is younger than %s", p.Replicas, fault.Duration(o.OutboxKeep))
	}
	return bad(asynchronous, "add a standby, and name it in synchronous_standby_names", "no standby: when this server is lost, what was recorded since the last backup is lost too")
}

func deadEvents(p drop.LedgerHealth, _ Options) verdict {
	var n int64
	for _, count := range p.Dead {
		n += count
	}
	if n == 0 {
		return good("none")
	}
	var kinds []string
	codes := drop.WorstFirst(p.Dead)
	for _, code := range codes {
		kinds = append(kinds, fmt.Sprintf("%d %s", p.Dead[code], code))
	}
	return bad(deadLetters, "see them: dropctl outbox list --state dead; what it means: dropctl explain "+string(codes[0]), "%d events could not be recorded: %s", n, strings.Join(kinds, ", "))
}

func stoppedLots(p drop.LedgerHealth, _ Options) verdict {
	if len(p.Stopped) == 0 {
		return good("none")
	}
	var lots []drop.LotID
	for _, s := range p.Stopped {
		lots = append(lots, s.Lot)
	}
	return bad(stopped, fault.Lookup(p.Stopped[0].Code).Hint, "nothing more is recorded of %s (%s)", someLots(lots), p.Stopped[0].Code)
}

// payments judges whether the payment gateway decides what it is asked. Without one nothing is ever open.
func payments(p drop.LedgerHealth, _ Options) verdict {
	switch pay := p.Payments; {
	case pay.Stuck > 0:
		return bad(noAnswer, "see the log of a dropctl worker --payment webhook, and the gateway's own", "%d charges and refunds have had no clear answer of the payment gateway for five minutes", pay.Stuck)
	case pay.Refused > 0:
		return bad(refundRefused, "dropctl status -o json --jq .refused_refunds", "the payment gateway will not make %d refunds", pay.Refused)
	case pay.Open+pay.Declined+pay.Returns > 0:
		return good("%d charges and %d refunds are under way, %d declined payments are tried again", pay.Open, pay.Returns, pay.Declined)
	}
	return good("none is open")
}

// hooks judges whether receivers are told what they want to know.
func hooks(p drop.LedgerHealth, _ Options) verdict {
	var failing, parked []string
	for _, h := range p.Hooks {
		if !h.FailingSince.IsZero() {
			failing = append(failing, h.ID)
		}
		if h.Parked > 0 {
			parked = append(parked, h.ID)
		}
	}
	switch {
	case len(failing) > 0:
		return bad(hookFails, "dropctl hook test "+failing[0], "no answer from the receivers of: %s", some(failing))
	case len(parked) > 0:
		return bad(hookFails, "dropctl hook retry "+strings.Join(parked, " "), "notices of %s were given up", some(parked))
	case len(p.Hooks) == 0:
		return good("none")
	}
	return good("%d, and their receivers answer", len(p.Hooks))
}

func workers(p drop.LedgerHealth, o Options) verdict {
	idle := slices.DeleteFunc(slices.Clone(o.Parts), func(part string) bool {
		return slices.Contains(p.Parts, part) || part == "notify" && len(p.Hooks) == 0
	})
	others := slices.DeleteFunc(slices.Clone(p.Versions), func(v string) bool { return v == o.Version })
	switch {
	case len(p.Versions) == 0:
		return bad(noWorker, "dropctl worker", "no worker is alive: nothing is recorded and no hold is taken back")
	case len(idle) > 0:
		return bad(partIdle, "dropctl worker --only "+strings.Join(idle, ","), "nobody does %s", strings.Join(idle, ", "))
	case len(others) > 0:
		return bad(mixed, "let all processes run one version", "a worker is of version %s, this is %s", others[0], o.Version)
	}
	return good("%d alive", len(p.Versions))
}

// throttle judges the limits that the workers were given.
func throttle(p drop.LedgerHealth, _ Options) verdict {
	pace := p.Progress.Pace
	switch {
	case pace.Limit == 0:
		return good("no worker writes") // the check of the workers says so
	case pace.Highest > pace.Limit:
		return bad(otherLimits, "give all workers one --max-events-per-second", "workers were given other limits, from %.0f to %.0f events/s: the lowest holds for all", pace.Limit, pace.Highest)
	}
	return good("all workers together write %.0f events/s at most", pace.Limit)
}
