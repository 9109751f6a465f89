package lab

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

const clusterSlots = 16_384

// Cluster is a private Redis Cluster of masters without replicas.
type Cluster struct {
	Nodes []*Redis // node i serves the i-th part of the slots
}

// StartCluster starts a Redis Cluster of n nodes and waits until every node sees it whole. The context
// bounds the start only. Errors are those of StartRedis.
func StartCluster(ctx context.Context, n int, o RedisOptions) (*Cluster, error) {
	if n < 1 {
		return nil, fault.New(fault.Invalid, "a Redis Cluster has at least one node, not %d", n)
	}
	c := &Cluster{}
	if err := c.start(ctx, n, o); err != nil {
		_ = c.Stop(context.WithoutCancel(ctx))
		return nil, err
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context, n int, o RedisOptions) error {
	password := newPassword()
	buses := make([]int, n)
	for i := range n {
		bus, err := freePort()
		if err != nil {
			return err
		}
		buses[i] = bus
		node := o
		node.Directives = append([]string{
			"cluster-enabled yes",
			fmt.Sprintf("cluster-port %d", bus),
			"cluster-node-timeout 5000",
		}, o.Directives...)
		r, err := startRedis(ctx, node, password)
		if err != nil {
			return err
		}
		c.Nodes = append(c.Nodes, r)
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
	for i, r := range c.Nodes[1:] {
		_, err := c.Nodes[0].Do(ctx, "CLUSTER", "MEET", "127.0.0.1", strconv.Itoa(r.port), strconv.Itoa(buses[i+1]))
		if err != nil {
			return err
		}
	}
	return c.AwaitOK(ctx)
}

// AwaitOK waits until every node sees all nodes and all slots served, as after a node's restart.
// It gives up with Unavailable after 60 s or when the context ends.
func (c *Cluster) AwaitOK(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for _, r := range c.Nodes {
		for {
			info, err := r.Do(ctx, "CLUSTER", "INFO")
			if err == nil && strings.Contains(info, "cluster_state:ok") &&
				strings.Contains(info, fmt.Sprintf("cluster_known_nodes:%d\r", len(c.Nodes))) {
				break
			}
			select {
			case <-ctx.Done():
				return fault.Wrap(fault.Unavailable, errors.Join(ctx.Err(), err), "the Redis Cluster did not form")
			case <-poll.C:
			}
		}
	}
	return nil
}

// URL returns the address for cluster clients, naming every node. It contains the password.
func (c *Cluster) URL() string {
	u, _ := url.Parse(c.Nodes[0].URL()) // made by url.URL.String
	u.Path = ""
	q := url.Values{}
	for _, r := range c.Nodes[1:] {
		q.Add("addr", r.Addr())
	}
	u.RawQuery = q.Encode()
	return u.String()
}

// Stop stops every node and removes the folders.
func (c *Cluster) Stop(ctx context.Context) error {
	var errs []error
	for _, r := range c.Nodes {
		errs = append(errs, r.Stop(ctx))
	}
	return errors.Join(errs...)
}
