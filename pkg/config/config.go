// Package config resolves the settings of dropctl, once: a flag beats its environment variable, that
// beats the config file, that beats the default. It keeps where each value came from.
package config

import (
	"maps"
	"os"
	"os/user"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"github.com/spf13/viper"

	"github.com/dropctl/dropctl/pkg/fault"
)

// Sources say where settings may come from.
type Sources struct {
	Flags    *pflag.FlagSet      // the flags of the running command; nil for none
	EnvFlags map[string]bool     // the flags that ApplyEnv set, which nobody typed
	Getenv   func(string) string // the environment; an empty value counts as unset
	File     string              // --config: a path, "none", or empty for the usual places
}

// Resolve reads and checks every setting. Its errors have code invalid_config, or usage for a flag.
func Resolve(src Sources) (*Config, error) {
	path, err := FindFile(src)
	if err != nil {
		return nil, err
	}
	file, err := readFile(path)
	if err != nil {
		return nil, err
	}
	attested, _ := file[attestKey].(map[string]string)
	delete(file, attestKey)
	v := viper.New()
	if err := v.MergeConfigMap(file); err != nil {
		return nil, fault.Wrap(fault.InvalidConfig, err, "%s", path)
	}
	cfg := &Config{Attested: attested, origins: map[string]string{}}
	for name := range attested {
		cfg.origins[attestSpot+name] = fromFile + path
	}
	for _, s := range settings {
		raw, origin := s.find(src, v, path)
		value, err := s.parse(raw)
		if err != nil {
			return nil, s.invalid(err, origin)
		}
		v.Set(s.Name, value)
		cfg.origins[s.Name] = origin
	}
	// Without hooks: the parsed values have their final types.
	if err := v.UnmarshalExact(cfg, viper.DecodeHook(nil)); err != nil {
		return nil, fault.Wrap(fault.InvalidConfig, err, "settings")
	}
	if cfg.Actor == "" {
		cfg.Actor = defaultActor(src.Getenv)
	}
	return cfg, nil
}

// The origins of a value. A file's origin is "file" and its path.
const (
	fromDefault = "default"
	fromFlag    = "flag --"
	fromEnv     = "env "
	fromFile    = "file "
)

// find returns the text of a setting from the first source that has it.
func (s Setting) find(src Sources, v *viper.Viper, path string) (raw any, origin string) {
	if src.Flags != nil {
		if f := src.Flags.Lookup(s.Name); f != nil && f.Changed && !src.EnvFlags[s.Name] && IsSetting(f) {
			return f.Value.String(), fromFlag + s.Name
		}
	}
	if value := src.Getenv(s.Env()); value != "" {
		return value, fromEnv + s.Env()
	}
	if v.InConfig(s.Name) {
		return v.Get(s.Name), fromFile + path
	}
	return s.Default, fromDefault
}

// invalid words a refused value. A secret's text is never part of err.
func (s Setting) invalid(err error, origin string) error {
	if strings.HasPrefix(origin, fromFlag) {
		return fault.Wrap(fault.Usage, err, "--%s", s.Name).WithField(s.Name).
			WithHint("see what it takes: dropctl help environment")
	}
	return fault.Wrap(fault.InvalidConfig, err, "%s (from %s)", s.Name, origin).WithField(s.Name)
}

// Origin returns where the value of a setting came from: default, flag, environment variable or file.
func (c *Config) Origin(name string) string { return c.origins[name] }

// Shown returns the value of a setting as it may be shown: a secret redacted, a size with its unit.
func (c *Config) Shown(name string) any {
	if attested, ok := strings.CutPrefix(name, attestSpot); ok {
		return c.Attested[attested]
	}
	fields := reflect.ValueOf(*c)
	for i := range fields.NumField() {
		if fields.Type().Field(i).Tag.Get("mapstructure") != name {
			continue
		}
		switch x := fields.Field(i).Interface().(type) {
		case Secret:
			return x.String()
		case Bytes:
			return x.String()
		case Rate:
			return x.String()
		case Networks:
			return x.String()
		default:
			return x
		}
	}
	return nil
}

// Listed returns the names of all settings in force, for Shown and Origin: those of the table, then what is attested.
func (c *Config) Listed() []string {
	var names []string
	for _, s := range settings {
		names = append(names, s.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Attested)) {
		names = append(names, attestSpot+name)
	}
	return names
}

// Warnings returns what the user should change although it works. No secret is among the words.
func (c *Config) Warnings() []string {
	var list []string
	for _, u := range []struct {
		name  string
		value Secret
	}{{"redis-url", c.RedisURL}, {"database-url", c.DatabaseURL}, {"server", c.ServerURL}, {"payment-url", c.PaymentURL}} {
		// Where there is neither @ nor =, something else was hidden than a password: a URL without its scheme.
		if u.value.HasPassword() && strings.ContainsAny(u.value.Reveal(), "@=") && strings.HasPrefix(c.Origin(u.name), fromFlag) {
			list = append(list, "the password in --"+u.name+" can be read by every user of this machine; use "+
				EnvName(u.name)+", or --"+u.name+" file:/path")
		}
	}
	return list
}

// HasEnv reports whether a flag has an environment variable. --help and --version act instead of a
// command; an installer's DROPCTL_VERSION must not trigger that. The variable of a setting belongs to the
// setting: DROPCTL_LISTEN is where the API listens, and must not take a worker's --listen to the same place.
func HasEnv(flag *pflag.Flag) bool {
	return flag.Name != "help" && flag.Name != "version" && (IsSetting(flag) || !known(flag.Name))
}

// IsSetting tells a setting's flag from a command's own flag of the same name: confirm --payment REF, worker --listen.
func IsSetting(flag *pflag.Flag) bool {
	_, ok := flag.Value.(*flagValue)
	return ok
}

// ApplyEnv gives each flag that was not typed the value of its environment variable, and returns the
// names of the flags it set. It fails with code usage if a value does not fit its flag.
func ApplyEnv(flags *pflag.FlagSet, getenv func(string) string) (map[string]bool, error) {
	set := map[string]bool{}
	var failed error
	flags.VisitAll(func(f *pflag.Flag) {
		value := getenv(EnvName(f.Name))
		if f.Changed || value == "" || !HasEnv(f) || failed != nil {
			return
		}
		if err := flags.Set(f.Name, value); err != nil {
			failed = fault.New(fault.Usage, "%s does not fit --%s, which takes a %s", EnvName(f.Name), f.Name, f.Value.Type()).
				WithField(f.Name).WithHint("correct or unset %s", EnvName(f.Name))
			return
		}
		set[f.Name] = true
	})
	return set, failed
}

// defaultActor names who runs the command, for the journal.
func defaultActor(getenv func(string) string) string {
	name := getenv("USER")
	if name == "" {
		name = getenv("LOGNAME")
	}
	if name == "" {
		if u, err := user.Current(); err == nil {
			name = u.Username
		}
	}
	if name == "" {
		name = "unknown"
	}
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown"
	}
	return name + "@" + host
}
