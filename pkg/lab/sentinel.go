package lab

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/dropctl/dropctl/pkg/fault"
)

// SentinelMaster is the name under which Sentinels know their primary.
const SentinelMaster = "dropctl"

// Sentinels are Redis Sentinels that watch one primary with its replicas and replace it when most of them cannot
// reach it for 1.5 s. They ask for no password. They find every server where it announces itself.
type Sentinels struct {
	Nodes    []*Redis // they speak the Redis protocol; Pause, Kill and Start work as with Redis
	password string   // of the servers
}

// StartSentinels starts n Sentinels for the primary and waits until they know each other and its replicas, which
// have to run already. The context bounds the start only. Errors are those of StartRedis.
func StartSentinels(ctx context.Context, n int, primary *Redis, replicas int) (*Sentinels, error) {
	s := &Sentinels{password: primary.password}
	if err := s.start(ctx, n, primary, replicas); err != nil {
		_ = s.Stop(context.WithoutCancel(ctx))
		return nil, err
	}
	return s, nil
}

func (s *Sentinels) start(ctx context.Context, n int, primary *Redis, replicas int) error {
	host, port := primary.announced()
	name := SentinelMaster
	directives := []string{
		fmt.Sprintf("sentinel monitor %s %s %s %d", name, host, port, n/2+1),
		fmt.Sprintf("sentinel auth-pass %s %s", name, primary.password),
		fmt.Sprintf("sentinel down-after-milliseconds %s 1500", name),
		fmt.Sprintf("sentinel failover-timeout %s 5000", name),
		"sentinel announce-ip " + loopback, // not that of the way to the primary
	}
	for range n {
		r, err := startRedis(ctx, RedisOptions{sentinel: directives}, "")
		if err != nil {
			return err
		}
		s.Nodes = append(s.Nodes, r)
		// They get to know each other within parts of a second, and a busy machine does not put them out of work.
		_, err = r.Do(ctx, "SENTINEL", "DEBUG", "INFO-PERIOD", "500", "PUBLISH-PERIOD", "200", "TILT-TRIGGER", "20000")
		if err != nil {
			return err
		}
	}
	return s.awaitAcquaintance(ctx, replicas)
}

func (s *Sentinels) awaitAcquaintance(ctx context.Context, replicas int) error {
	return await(ctx, "the acquaintance of the Sentinels", func(ctx context.Context) error {
		for _, node := range s.Nodes {
			text, err := node.Do(ctx, "SENTINEL", "MASTER", SentinelMaster)
			if err != nil {
				return err
			}
			fields := strings.Split(text, "\n") // names and values in turn
			for name, want := range map[string]int{"num-slaves": replicas, "num-other-sentinels": len(s.Nodes) - 1} {
				at := slices.Index(fields, name)
				if at < 0 || at+1 == len(fields) || fields[at+1] != strconv.Itoa(want) {
					return fmt.Errorf("a Sentinel does not see %s %d", name, want)
				}
			}
		}
		return nil
	})
}

// Primary returns the address of the primary that all running Sentinels name: where it announces itself.
// While they differ, or none runs, it is Unavailable.
func (s *Sentinels) Primary(ctx context.Context) (string, error) {
	var address string
	for _, node := range s.Nodes {
		if node.PID() == 0 {
			continue
		}
		reply, err := node.Do(ctx, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", SentinelMaster)
		if err != nil {
			return "", err
		}
		named := strings.ReplaceAll(reply, "\n", ":")
		if address != "" && named != address {
			return "", fault.New(fault.Unavailable, "the Sentinels name two primaries, %s and %s", address, named)
		}
		address = named
	}
	if address == "" {
		return "", fault.New(fault.Unavailable, "no Sentinel runs")
	}
	return address, nil
}

// URL returns the address for clients that ask the Sentinels, naming every one. It contains the servers' password.
func (s *Sentinels) URL() string {
	hosts := make([]string, len(s.Nodes))
	for i, node := range s.Nodes {
		hosts[i] = node.Addr()
	}
	return "redis-sentinel://" + url.UserPassword("", s.password).String() + "@" + strings.Join(hosts, ",") + "/" + SentinelMaster
}

// Stop stops every Sentinel and removes the folders.
func (s *Sentinels) Stop(ctx context.Context) error {
	var errs []error
	for _, node := range s.Nodes {
		errs = append(errs, node.Stop(ctx))
	}
	return errors.Join(errs...)
}
