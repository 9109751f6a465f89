package api

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

// Bounds of a connection. Somebody who sends or reads slowly loses it; until its body is whole a request has no place
// in the engine.
const (
	headerTime = 5 * time.Second
	readTime   = 10 * time.Second
	writeTime  = 30 * time.Second // of an ordinary answer; a stream sets its own
	idleTime   = 90 * time.Second
	maxHeader  = 16 << 10
	maxBody    = 64 << 10
)

// ServerOptions says how to listen and how to stop.
type ServerOptions struct {
	CertFile, KeyFile string        // PEM files, read again when they change; "" for plain HTTP
	DrainLimit        time.Duration // how long requests may take to end once the server stops; default 25s
}

// IsLoopback reports whether only this machine can reach a listener.
func IsLoopback(ln net.Listener) bool {
	tcp, ok := ln.Addr().(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// Serve answers requests until ctx ends, then stops accepting, ends the streams and lets requests finish, at most as
// long as the drain limit. It closes the listener and may be called once.
func (a *API) Serve(ctx context.Context, ln net.Listener, o ServerOptions) error {
	if o.DrainLimit == 0 {
		o.DrainLimit = 25 * time.Second
	}
	srv := &http.Server{Handler: a.handler, ReadHeaderTimeout: headerTime, ReadTimeout: readTime, WriteTimeout: writeTime,
		IdleTimeout: idleTime, MaxHeaderBytes: maxHeader, ErrorLog: slog.NewLogLogger(a.opt.Log.Handler(), slog.LevelDebug)}
	if o.CertFile != "" || o.KeyFile != "" {
		cert, err := loadCertificate(o.CertFile, o.KeyFile, a.opt.Log)
		if err != nil {
			_ = ln.Close()
			return err
		}
		srv.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: cert.get}
	}
	served := make(chan error, 1)
	go func() {
		if srv.TLSConfig != nil {
			served <- srv.ServeTLS(ln, "", "")
		} else {
			served <- srv.Serve(ln)
		}
	}()
	select {
	case err := <-served:
		return fault.Wrap(fault.Failed, err, "the server stopped")
	case <-ctx.Done():
	}
	return a.drain(srv, o.DrainLimit)
}

// drain stops a server gracefully.
func (a *API) drain(srv *http.Server, limit time.Duration) error {
	a.opt.Log.Info("stopping: no new connections; requests may finish", "limit", limit)
	close(a.closing)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	err := srv.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		_ = srv.Close()
		return fault.New(fault.Unavailable, "requests were still running %s after the server was told to stop; they were cut off", limit).
			WithHint("their outcome is unknown to their callers, who may ask again with the same key; a longer --drain-limit lets them finish")
	}
	return err
}
