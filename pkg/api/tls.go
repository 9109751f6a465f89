package api

import (
	"crypto/tls"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

// certificate serves a certificate from files and takes up new ones without a restart.
type certificate struct {
	certFile, keyFile string
	log               *slog.Logger

	mu     sync.Mutex
	now    *tls.Certificate
	read   time.Time // when the files were looked at last
	change [2]time.Time
}

// lookAgain is how often a handshake looks whether the files have changed.
const lookAgain = time.Second

// CheckCertificate reads a certificate and its key as Serve will, so that a mistake is told before anything is opened. Two
// empty names stand for plain HTTP. Its errors have code invalid_config.
func CheckCertificate(certFile, keyFile string) error {
	if certFile == "" && keyFile == "" {
		return nil
	}
	_, err := loadCertificate(certFile, keyFile, nil)
	return err
}

// loadCertificate reads the files once.
func loadCertificate(certFile, keyFile string, log *slog.Logger) (*certificate, error) {
	for _, lack := range []struct{ file, setting, other string }{{certFile, "tls-cert-file", "tls-key-file"}, {keyFile, "tls-key-file", "tls-cert-file"}} {
		if lack.file == "" {
			return nil, fault.New(fault.InvalidConfig, "--%s is given without --%s", lack.other, lack.setting).WithField(lack.setting).
				WithHint("HTTPS needs both: a PEM certificate and its private key")
		}
	}
	c := &certificate{certFile: certFile, keyFile: keyFile, log: log}
	if err := c.load(); err != nil {
		return nil, fault.Wrap(fault.InvalidConfig, err, "the certificate cannot be used").WithField("tls-cert-file").
			WithHint("name a PEM certificate with --tls-cert-file and its private key with --tls-key-file")
	}
	return c, nil
}

func (c *certificate) load() error {
	var change [2]time.Time
	for i, file := range []string{c.certFile, c.keyFile} {
		info, err := os.Stat(file)
		if err != nil {
			return err
		}
		change[i] = info.ModTime()
	}
	if c.now != nil && change == c.change {
		return nil
	}
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return err
	}
	c.now, c.change = &pair, change
	return nil
}

// get returns the newest certificate that could be read: half-written files must not stop a sale.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.read) < lookAgain {
		return c.now, nil
	}
	c.read = time.Now()
	if err := c.load(); err != nil {
		c.log.Warn("the new certificate cannot be used; the old one stays", "error", err)
	}
	return c.now, nil
}
