package broker

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const caName = "ca.pem"

// Main is the cluster, if this process was started as one, until its parent is gone. Call it first in TestMain, which ends
// the process then.
func Main() (was bool) {
	if os.Getenv(envFolder) == "" {
		return false
	}
	if err := serve(os.Stdout); err != nil {
		_, _ = fmt.Fprintln(os.Stdout, "failed:", err)
	}
	return true
}

// serve runs the cluster and does as it is told.
func serve(out io.Writer) error {
	acks := &lostAcks{}
	cluster, err := newCluster(acks)
	if err != nil {
		return err
	}
	defer cluster.Close()
	if _, err := fmt.Fprintln(out, "ok"); err != nil {
		return err
	}
	words := bufio.NewScanner(os.Stdin)
	for words.Scan() {
		answer := ""
		switch word, rest, _ := strings.Cut(words.Text(), " "); word {
		case "lose-acks":
			n, err := strconv.Atoi(rest)
			if err != nil {
				return err
			}
			acks.lose(n)
		case "acks-lost":
			answer = strconv.Itoa(acks.count())
		case "refuse-commits":
			n, err := strconv.Atoi(rest)
			if err != nil {
				return err
			}
			for range n {
				cluster.ControlKey(int16(kmsg.OffsetCommit), refuseCommit)
			}
		case "shuffle":
			cluster.ShufflePartitionLeaders()
			cluster.RehashCoordinators()
		default:
			return fmt.Errorf("what is %q?", word)
		}
		if _, err := fmt.Fprintln(out, "ok", answer); err != nil {
			return err
		}
	}
	return words.Err()
}

// refuseCommit answers one request to commit offsets with an error that clients do not try again.
func refuseCommit(asked kmsg.Request) (kmsg.Response, error, bool) {
	commit := asked.(*kmsg.OffsetCommitRequest)
	answer := commit.ResponseKind().(*kmsg.OffsetCommitResponse)
	for _, t := range commit.Topics {
		topic := kmsg.NewOffsetCommitResponseTopic()
		topic.Topic, topic.TopicID = t.Topic, t.TopicID
		for _, p := range t.Partitions {
			partition := kmsg.NewOffsetCommitResponseTopicPartition()
			partition.Partition, partition.ErrorCode = p.Partition, kerr.UnknownServerError.Code
			topic.Partitions = append(topic.Partitions, partition)
		}
		answer.Topics = append(answer.Topics, topic)
	}
	return answer, nil, true
}

func newCluster(acks *lostAcks) (*kfake.Cluster, error) {
	folder := os.Getenv(envFolder)
	var ports []int
	for text := range strings.SplitSeq(os.Getenv(envPorts), ",") {
		port, err := strconv.Atoi(text)
		if err != nil {
			return nil, err
		}
		ports = append(ports, port)
	}
	listen := func(network, address string) (net.Listener, error) {
		ln, err := net.Listen(network, address)
		return acks.listener(ln), err
	}
	opts := []kfake.Opt{kfake.NumBrokers(len(ports)), kfake.Ports(ports...), kfake.DataDir(filepath.Join(folder, "data")), kfake.SyncWrites(), kfake.ListenFn(listen)}
	if os.Getenv(envSecure) != "" {
		certificate, err := newCertificate(filepath.Join(folder, caName))
		if err != nil {
			return nil, err
		}
		opts = append(opts, kfake.TLS(&tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}), kfake.EnableSASL())
		for _, mechanism := range []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"} {
			opts = append(opts, kfake.Superuser(mechanism, Username, Password))
		}
	}
	return kfake.NewCluster(opts...)
}

// newCertificate makes one for this machine, and writes what vouches for it.
func newCertificate(path string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, os.WriteFile(path, block, 0o600)
}
