// Package lab starts private, real Redis and PostgreSQL servers from the programs installed on this
// machine: for `dropctl lab` and `demo`, for tests and for benchmarks.
//
// A server listens on 127.0.0.1 (a free port) and on a unix socket, asks for a random password, keeps
// everything in one folder of its own and never outlives its parent: a watchdog (watchdog.go) ends it and
// removes the folder even when the parent is killed with SIGKILL. Windows is not supported.
//
// For rehearsing trouble there are replicas, Sentinels, clusters and standbys, links between them that can be cut,
// and disks that can run full. A process without special rights can start all of it.
package lab

import (
	"context"
	"errors"
)

// Lab is one Redis and one PostgreSQL, what a whole dropctl needs.
type Lab struct {
	Redis    *Redis
	Postgres *Postgres
}

// Start starts both servers at once. The context bounds the start only; the servers run until Stop.
// Errors are those of StartRedis and StartPostgres; after an error nothing is left behind.
func Start(ctx context.Context, r RedisOptions, p PostgresOptions) (*Lab, error) {
	starting, giveUp := context.WithCancel(ctx)
	defer giveUp()
	var (
		l           Lab
		postgresErr error
		done        = make(chan struct{})
	)
	go func() {
		defer close(done)
		l.Postgres, postgresErr = StartPostgres(starting, p)
	}()
	var err error
	l.Redis, err = StartRedis(starting, r)
	if err != nil {
		giveUp() // PostgreSQL takes longer
	}
	<-done
	if err == nil {
		err = postgresErr
	}
	if err != nil {
		_ = l.Stop(context.WithoutCancel(ctx))
		return nil, err
	}
	return &l, nil
}

// Stop stops both servers and removes their folders.
func (l *Lab) Stop(ctx context.Context) error {
	var errs []error
	if l.Redis != nil {
		errs = append(errs, l.Redis.Stop(ctx))
	}
	if l.Postgres != nil {
		errs = append(errs, l.Postgres.Stop(ctx))
	}
	return errors.Join(errs...)
}
