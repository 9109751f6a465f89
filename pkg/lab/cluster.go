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

const clusterSlots = 16_384

// Cluster is a private Redis Cluster.
type Cluster struct {
	Nodes    []*Redis // node i starts as the primary of the i-th part of the slots
	Replicas []*Redis // replica i starts as the copy of node i modulo the number of nodes
}

// StartCluster starts a Redis Cluster of n nodes with that many replicas each, and waits until every one of them
// sees it whole. With replicas a dead node is replaced after some 3 s. The context bounds the start only. Errors are
// those of StartRedis.
func StartCluster(ctx context.Context, n, replicas int, o RedisOptions) (*Cluster, error) {
	if n < 1 || replicas < 0 {
		return nil, fault.New(fault.Invalid, "a Redis Cluster has at least one node: %d nodes with %d replicas each", n, replicas)
	}
	c := &Cluster{}
	if err := c.start(ctx, n, replicas, o); err != nil {
		_ = c.Stop(context.WithoutCancel(ctx))
		return nil, err
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context, n, replicas int, o RedisOptions) error {
	timeout := 5000
	if replicas > 0 {
		timeout = 2000 // somebody waits for it
	}
	password := newPassword()
	all := make([]*Redis, n*(1+replicas))
	buses := make([]int, len(all))
	for i := range all {
		bus, err := freePort()
		if err != nil {
			return err
		}
		buses[i] = bus
		node := o
		node.Directives = append([]string{
			"cluster-enabled yes",
			fmt.Sprintf("cluster-port %d", bus),
			fmt.Sprintf("cluster-node-timeout %d", timeout),
		}, o.Directives...)
		if all[i], err = startRedis(ctx, node, password); err != nil {
			return err
		}
		if i < n {
			c.Nodes = append(c.Nodes, all[i])
		} else {
			c.Replicas = append(c.Replicas, all[i])
		}
	}
	for i, r := range c.Nodes {
		first, last := i*clusterSlots/n, (i+1)*clusterSlots/n-1
		if _, err := r.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1)); err != nil {
			return err
		}
		if _, err := r.Do(ctx, "CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(first), strconv.Itoa(last)); err != nil {
			return err
		}
	}
	for i, r := range all[1:] {
		_, err := all[0].Do(ctx, "CLUSTER", "MEET", "127.0.0.1", strconv.Itoa(r.port), strconv.Itoa(buses[i+1]))
		if err != nil {
			return err
		}
	}
	if err := c.AwaitOK(ctx); err != nil {
		return err
	}
	return c.replicate(ctx)
}

// replicate makes the replicas copy their nodes, and waits until every node would be replaced.
func (c *Cluster) replicate(ctx context.Context) error {
	for i, replica := range c.Replicas {
		node := c.Nodes[i%len(c.Nodes)]
		id, err := node.Do(ctx, "CLUSTER", "MYID")
		if err != nil {
			return err
		}
		if _, err := replica.Do(ctx, "CLUSTER", "REPLICATE", id); err != nil {
			return err
		}
	}
	for i, replica := range c.Replicas {
		if err := replica.AwaitCopy(ctx, c.Nodes[i%len(c.Nodes)]); err != nil {
			return err
		}
	}
	// A promotion is decided by votes of nodes that know who copies whom.
	return c.await(ctx, "CLUSTER NODES", func(nodes string) bool {
		return strings.Count(nodes, "slave") == len(c.Replicas)
	})
}

// AwaitOK waits until every node sees all nodes and all slots served, as after a node's restart.
// It gives up with Unavailable after 60 s or when the context ends.
func (c *Cluster) AwaitOK(ctx context.Context) error {
	known := fmt.Sprintf("cluster_known_nodes:%d\r", len(c.Nodes)+len(c.Replicas))
	return c.await(ctx, "CLUSTER INFO", func(info string) bool {
		return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, known)
	})
}

// await asks every node and replica in turn until its answer is fine.
func (c *Cluster) await(ctx context.Context, question string, fine func(answer string) bool) error {
	for _, r := range slices.Concat(c.Nodes, c.Replicas) {
		err := await(ctx, "the Redis Cluster's coming together", func(ctx context.Context) error {
			answer, err := r.Do(ctx, strings.Fields(question)...)
			if err == nil && !fine(answer) {
				err = errors.New("not every node sees it whole")
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// URL returns the address for cluster clients, naming every node. It contains the password.
func (c *Cluster) URL() string {
	u, _ := url.Parse(c.Nodes[0].URL()) // made by url.URL.String
	u.Path = ""
	q := url.Values{}
	for _, r := range slices.Concat(c.Nodes[1:], c.Replicas) {
		q.Add("addr", r.Addr())
	}
	u.RawQuery = q.Encode()
	return u.String()
}

// Stop stops every node and removes the folders.
func (c *Cluster) Stop(ctx context.Context) error {
	var errs []error
	for _, r := range slices.Concat(c.Nodes, c.Replicas) {
		errs = append(errs, r.Stop(ctx))
	}
	return errors.Join(errs...)
}
