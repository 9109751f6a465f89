package api_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/api"
	"github.com/dropctl/dropctl/pkg/client"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/testkit"
)

func (s *site) dial(t testing.TB) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// reserving is a request for the lot hat as bytes.
func reserving(user string) string {
	body := `{"user":"` + user + `"}`
	return fmt.Sprintf("POST /v1/lots/hat/reservations HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: k\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		len(body), body)
}

// TestWhoSendsSlowlyHoldsNobodyUp opens more connections than there are places in the engine, each in the middle of a
// request.
func TestWhoSendsSlowlyHoldsNobodyUp(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newAPI(t, func(o *setup) { o.noWorker, o.options.Queue = true, 4 })
	s.load(t, drop.Definition{Lot: "hat", Stock: 100})
	for i := range 50 {
		request := reserving(fmt.Sprintf("slow-%d", i))
		if _, err := io.WriteString(s.dial(t), request[:len(request)-5]); err != nil { // its body is not whole
			t.Fatal(err)
		}
		if _, err := io.WriteString(s.dial(t), request[:30]); err != nil { // nor is this one's head
			t.Fatal(err)
		}
	}
	for i := range 10 {
		s.reserve(t, "hat", fmt.Sprintf("quick-%d", i), "k", 1)
	}
	if state := s.lot(t, "hat"); state.Held != 10 {
		t.Errorf("%d held", state.Held)
	}
}

// TestMoreThanTheEngineTakesAreRefusedAtOnce stops Redis, so that requests stay in the engine.
func TestMoreThanTheEngineTakesAreRefusedAtOnce(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	const places = 8
	s := newAPI(t, func(o *setup) { o.noWorker, o.options.Queue = true, places })
	s.load(t, drop.Definition{Lot: "hat", Stock: 100})
	s.reserve(t, "hat", "first", "k", 1)
	if err := s.redis.Pause(); err != nil {
		t.Fatal(err)
	}
	kinds := [2]chan answer{make(chan answer, 5*places), make(chan answer, 5*places)} // of holds and of looks
	for i := range 10 * places {
		go func() {
			method, path, body := "POST", "/v1/lots/hat/reservations", any(client.ReserveBody{User: fmt.Sprint("u", i)})
			if i%2 == 1 {
				method, path, body = "GET", "/v1/lots/hat", nil
			}
			ans, _ := s.try(context.Background(), method, path, body, headers{"Idempotency-Key": "k"})
			kinds[i%2] <- ans
		}()
	}
	var overloaded [2]int
	for i := range 10 * places {
		ans := <-kinds[i%2]
		if ans.status != http.StatusServiceUnavailable || ans.header.Get("Retry-After") == "" {
			t.Errorf("%d %s", ans.status, ans.body)
		}
		if strings.Contains(string(ans.body), `"overloaded"`) {
			overloaded[i%2]++
		}
	}
	if err := s.redis.Resume(); err != nil {
		t.Fatal(err)
	}
	if overloaded[0] == 0 || overloaded[1] == 0 {
		t.Errorf("%d holds and %d looks were told that the server is overloaded", overloaded[0], overloaded[1])
	}
	testkit.Eventually(t, 20*time.Second, func() (bool, string) {
		ans, err := s.try(t.Context(), "POST", "/v1/lots/hat/reservations", client.ReserveBody{User: "later"}, headers{"Idempotency-Key": "k"})
		return err == nil && ans.status < 300, fmt.Sprintf("%d %s", ans.status, ans.body)
	})
}

// TestAServerThatStopsFinishesWhatItBegan stops a server while a confirm waits for a ledger that nobody writes to, a
// stream is open and a client is idle.
func TestAServerThatStopsFinishesWhatItBegan(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newAPI(t, func(o *setup) { o.noWorker, o.options.LedgerWait = true, time.Second })
	s.load(t, drop.Definition{Lot: "hat", Stock: 100})
	r := s.reserve(t, "hat", "ada", "k", 1)
	stream := s.dial(t)
	if _, err := io.WriteString(stream, "GET /v1/lots/hat/events HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	events := bufio.NewReader(stream)
	for line := ""; !strings.HasPrefix(line, "event: availability"); {
		var err error
		if line, err = events.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	confirmed := make(chan answer, 1)
	go func() {
		ans, err := s.try(context.Background(), "POST", "/v1/reservations/"+r.ID+"/confirm", client.ConfirmBody{})
		if err != nil {
			t.Errorf("the confirm: %v", err)
		}
		confirmed <- ans
	}()
	testkit.Eventually(t, 30*time.Second, func() (bool, string) { return s.lot(t, "hat").Sold == 1, "nothing is confirmed" })
	s.shutDown()
	if got := into[client.Reservation](t, http.StatusAccepted, <-confirmed); got.Ledger != "pending" {
		t.Errorf("the confirm was answered %+v", got)
	}
	_ = stream.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.ReadAll(events); err != nil {
		t.Errorf("the stream did not end but: %v", err)
	}
	if _, err := s.try(t.Context(), "GET", "/livez", nil); err == nil {
		t.Errorf("it still answers")
	}
}

// TestWhoDoesNotEndIsCutOff stops a server while a request never becomes whole.
func TestWhoDoesNotEndIsCutOff(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newAPI(t, func(o *setup) { o.noWorker = true })
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := api.New(api.Options{Stock: s.stock, Ledger: s.shop, Lots: s.shop, Access: s.access, Metrics: s.metrics})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, ln, api.ServerOptions{DrainLimit: 200 * time.Millisecond}) }()
	s.url = "http://" + ln.Addr().String()
	conn := s.dial(t)
	request := reserving("slow")
	if _, err := io.WriteString(conn, request[:len(request)-5]); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		return s.counted(t, "dropctl_api_in_flight_requests") == 1, "the request has not begun"
	})
	stop()
	select {
	case err := <-ended:
		if !fault.Is(err, fault.Unavailable) {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(8 * time.Second): // less than a body may take
		t.Fatal("the server waits on")
	}
	_ = conn.SetReadDeadline(time.Now().Add(8 * time.Second))
	if _, err := io.ReadAll(conn); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection stays open")
	}
}

// TestANewCertificateIsTakenUp replaces the certificate of a server that goes on.
func TestANewCertificateIsTakenUp(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writeCertificate(t, cert, key, "first")
	s := newAPI(t, func(o *setup) { o.noWorker, o.server = true, api.ServerOptions{CertFile: cert, KeyFile: key} })
	address := strings.TrimPrefix(s.url, "http://")
	served := func() string {
		conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // it looks at the name itself
		if err != nil {
			return err.Error()
		}
		defer func() { _ = conn.Close() }()
		return conn.ConnectionState().PeerCertificates[0].Subject.CommonName
	}
	if got := served(); got != "first" {
		t.Fatalf("served %s", got)
	}
	if err := os.WriteFile(cert, []byte("half a certif"), 0o600); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 20*time.Second, func() (bool, string) {
		name := served()
		if name != "first" {
			t.Fatalf("with a broken file %s is served", name)
		}
		return strings.Contains(s.log.String(), "the old one stays"), "the log does not tell of it"
	})
	writeCertificate(t, cert, key, "second")
	testkit.Eventually(t, 20*time.Second, func() (bool, string) { name := served(); return name == "second", "served " + name })
	if conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS11}); err == nil { //nolint:gosec // it must be refused
		_ = conn.Close()
		t.Errorf("TLS 1.1 is spoken")
	}
}

func writeCertificate(t testing.TB, certFile, keyFile, name string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{keyFile: {Type: "EC PRIVATE KEY", Bytes: keyDER}, certFile: {Type: "CERTIFICATE", Bytes: der}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
