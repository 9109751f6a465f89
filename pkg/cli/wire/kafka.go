package wire

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"os"

	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/worker/kafka"
)

// openKafka opens the topic that the settings name, and has a look at it.
func openKafka(ctx context.Context, cfg *config.Config, getenv func(string) string, in ledger.Installation, log *slog.Logger) (Queue, error) {
	o, err := kafkaOptions(cfg, getenv)
	if err != nil {
		return Queue{}, err
	}
	o.Installation, o.Shards, o.Log = in.ID, in.Shards, log
	k, err := kafka.Open(o)
	if err != nil {
		return Queue{}, err
	}
	within, cancel := context.WithTimeout(ctx, cfg.Timeout/2) // the worker tries for as long as it takes
	defer cancel()
	switch err := k.Check(within); {
	case fault.Is(err, fault.InvalidConfig):
		k.Close()
		return Queue{}, err
	case err != nil:
		log.Warn("Kafka cannot be used yet; Redis keeps the events", "error", err, "next", fault.HintOf(err))
	}
	return Queue{Queue: k, Source: k, close: k.Close}, nil
}

// kafkaOptions says how to reach the Kafka that the settings name.
func kafkaOptions(cfg *config.Config, getenv func(string) string) (kafka.Options, error) {
	t, err := cfg.Broker(getenv)
	if err != nil {
		return kafka.Options{}, err
	}
	o := kafka.Options{Brokers: t.Brokers, Topic: cfg.KafkaTopic, Group: cfg.KafkaGroup, Replicas: cfg.KafkaReplicas,
		SASL: cfg.KafkaSASL, Username: cfg.KafkaUsername, Password: t.Password.Reveal(), Timeout: cfg.Timeout}
	if cfg.KafkaTLS || cfg.KafkaCAFile != "" || cfg.KafkaCertFile != "" || cfg.KafkaKeyFile != "" {
		o.TLS, err = kafkaTLS(cfg)
	}
	return o, err
}

func kafkaTLS(cfg *config.Config) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if cfg.KafkaCAFile != "" {
		pem, err := os.ReadFile(cfg.KafkaCAFile)
		if err != nil {
			return nil, fault.Wrap(fault.InvalidConfig, err, "kafka-ca-file").WithField("kafka-ca-file").WithHint("check that the file exists and that this user may read it")
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fault.New(fault.InvalidConfig, "kafka-ca-file: %s has no PEM certificate", cfg.KafkaCAFile).WithField("kafka-ca-file")
		}
	}
	if cfg.KafkaCertFile != "" || cfg.KafkaKeyFile != "" {
		pair, err := tls.LoadX509KeyPair(cfg.KafkaCertFile, cfg.KafkaKeyFile)
		if err != nil {
			return nil, fault.Wrap(fault.InvalidConfig, err, "kafka-cert-file and kafka-key-file").WithField("kafka-cert-file").WithHint("both are needed, and belong together")
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}
