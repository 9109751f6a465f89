package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/doctor"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/worker"
)

// The stores that --only names.
const (
	onlyRedis    = "redis"
	onlyPostgres = "postgres"
	onlyKafka    = "kafka"
	onlyTasks    = "cloudtasks"
)

func newDoctor(a *app) *cobra.Command {
	var profile string
	var only []string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check that the servers are fit for a drop, worst first",
		Long: `Check that Redis and PostgreSQL are set up so that nothing is sold twice or lost, and that the shop
runs. Nothing is changed. Every Redis server is looked at: the primary and its replicas behind
Sentinels, each primary of a cluster. Where transport is kafka or cloudtasks, the topic or the queue
is looked at too.

  ok       as it should be
  warn     it works, but should be mended
  fail     units could be lost, or nothing can be sold or recorded
  unknown  it could not be found out; that blocks nothing

With --profile production most of what only warns in development fails. What a managed Redis does
not tell can be attested in the config file: dropctl help files. The exit status is 6 if a check
fails; a store that is down is one failed check, and the other store is checked all the same.`,
		Example: `  dropctl doctor
  dropctl doctor --profile production
  dropctl doctor --only redis -o json --jq '.checks[] | select(.result == "fail")'`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := oneOf("profile", profile, doctor.Profiles()...); err != nil {
				return err
			}
			for _, store := range only {
				if err := oneOf("only", store, onlyRedis, onlyPostgres, onlyKafka, onlyTasks); err != nil {
					return err
				}
			}
			return a.doctor(cmd.Context(), doctor.Profile(profile), only)
		},
	}
	a.settings(cmd, cmd.Flags(), config.Redis, config.Database, config.Stock, config.Durable, config.Work, config.Tasks, config.Broker, config.Lag)
	cmd.Flags().StringVar(&profile, "profile", string(doctor.Development), "how strict to be: development or production")
	cmd.Flags().StringSliceVar(&only, "only", nil, "only these stores: redis, postgres, kafka, cloudtasks")
	_ = cmd.RegisterFlagCompletionFunc("profile", completeWords(doctor.Profiles()...))
	_ = cmd.RegisterFlagCompletionFunc("only", completeWords(onlyRedis, onlyPostgres, onlyKafka, onlyTasks))
	return cmd
}

// oneOf checks a flag that takes one of a few words.
func oneOf(flag, word string, words ...string) error {
	if slices.Contains(words, word) {
		return nil
	}
	return fault.New(fault.Usage, "--%s %q is none of %s", flag, word, strings.Join(words, ", ")).WithField(flag).
		WithHint("use --%s %s", flag, words[0])
}

// doctor takes one look. A store that is down, or not named, is a failed check; without any store named nothing can be
// checked.
func (a *app) doctor(ctx context.Context, profile doctor.Profile, only []string) error {
	wants := func(store string) bool { return len(only) == 0 || slices.Contains(only, store) }
	var s doctor.Stores
	var settings []error // nil for each store that is named
	if wants(onlyRedis) {
		_, err := a.cfg.Redis(a.getenv)
		s.Stock, settings = wire.DoctorStock(a.cfg, a.getenv), append(settings, err)
	}
	if wants(onlyPostgres) {
		_, err := a.cfg.Database(a.getenv)
		s.Ledger, settings = wire.DoctorLedger(a.cfg, a.getenv), append(settings, err)
	}
	if wants(onlyKafka) && a.cfg.Transport == config.Kafka {
		_, err := a.cfg.Broker(a.getenv)
		s.Topic, settings = wire.DoctorTopic(a.cfg, a.getenv), append(settings, err)
	}
	if wants(onlyTasks) && a.cfg.Transport == config.CloudTasks {
		s.Tasks, settings = wire.DoctorTasks(a.cfg), append(settings, wire.CheckTransport(a.cfg, a.getenv, true, false))
	}
	if len(settings) == 0 {
		return fault.New(fault.Usage, "workers do not use %s: the transport is %s", strings.Join(only, ", "), a.cfg.Transport).WithField("only").
			WithHint("set transport: %s in the config file, or %s", only[0], config.EnvName("transport"))
	}
	if !slices.Contains(settings, nil) {
		return settings[0]
	}
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	report := doctor.Run(ctx, s, a.doctorOptions(profile))
	if err := a.print(report); err != nil {
		return err
	}
	return report.Err()
}

func (a *app) doctorOptions(profile doctor.Profile) doctor.Options {
	o := doctor.Options{Profile: profile, Attested: a.cfg.Attested, MaxLag: a.cfg.MaxLag,
		OutboxMaxBytes: int64(a.cfg.OutboxMaxBytes), OutboxKeep: a.cfg.OutboxKeep, Version: thisVersion().Version, Now: time.Now}
	for _, part := range worker.PartsOf(wire.HasSource(a.cfg)) {
		o.Parts = append(o.Parts, string(part))
	}
	return o
}
