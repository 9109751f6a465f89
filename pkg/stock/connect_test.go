package stock

import (
	"strings"
	"testing"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/testkit"
)

func TestRedisURLs(t *testing.T) {
	const secret = "s3cr3t-passw0rd"
	for url, want := range map[string]string{
		"redis://localhost":                                  "localhost:6379",
		"redis://:" + secret + "@host:7000/3":                "host:7000",
		"rediss://user:" + secret + "@host":                  "host:6379",
		"unix:///run/redis.sock?db=1":                        "/run/redis.sock",
		"redis-sentinel://a,b:1/main":                        "main@a:26379,b:1",
		"redis-sentinel://u:" + secret + "@a,b/main":         "main@a:26379,b:26379",
		"redis-sentinel://a/main?db=2":                       "main@a:26379",
		"redis-cluster://a,b:7001":                           "a:6379,b:7001",
		"redis-cluster://u:" + secret + "@a:1,b:2":           "a:1,b:2",
		"redis-cluster://u:p%40ss@a:1":                       "a:1",
		"redis://[::1]:7000":                                 "[::1]:7000",
		"":                                                   "",
		"localhost:6379":                                     "",
		"http://host":                                        "",
		"redis-sentinel://a,b":                               "",
		"redis-cluster://a,,b":                               "",
		"redis-cluster://":                                   "",
		"redis://host/notanumber":                            "",
		"redis://:" + secret:                                 "", // the host is missing: the password stands in the port's place
		"redis://user:" + secret + "%zz@host":                "",
		"redis://user:" + secret + "/@host":                  "",
		"redis://host/" + secret:                             "",
		"redis://host?" + secret + "=1":                      "",
		"redis-cluster://u:" + secret + "/x@a,b":             "",
		"redis-cluster://u:1/" + secret + "@a,b":             "",
		"redis-sentinel://u:" + secret + "%@a/main":          "",
		"redis-sentinel://u:1/" + secret + "@a,b/main":       "",
		secret + "://host":                                   "",
		"redis://u:" + secret + " x@host name":               "",
		"redis-cluster://u:" + secret + "@a:port":            "",
		"unix://" + secret + "@host:notaport/x?db=" + secret: "",
	} {
		s, err := Open(Options{URL: url})
		if err != nil {
			if fault.CodeOf(err) != fault.InvalidConfig || fault.As(err).Field != "redis-url" {
				t.Errorf("%s: %v (%s)", strings.ReplaceAll(url, secret, "…"), err, fault.CodeOf(err))
			}
			if all := err.Error() + fault.HintOf(err); strings.Contains(all, secret) {
				t.Errorf("the error for %q shows the password", strings.ReplaceAll(url, secret, "…"))
			}
			if want != "" {
				t.Errorf("%s is refused: %v", strings.ReplaceAll(url, secret, "…"), err)
			}
			continue
		}
		if s.Target() != want {
			t.Errorf("%s leads to %q, want %q", strings.ReplaceAll(url, secret, "…"), strings.ReplaceAll(s.Target(), secret, "…"), want)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestThePasswordOfTheOptionsWins(t *testing.T) {
	for _, url := range []string{"redis://u:old@host", "redis-cluster://u:old@host"} {
		srv, _, err := connect(Options{URL: url, Password: "new"}.withDefaults())
		if err != nil {
			t.Fatal(err)
		}
		var password, user string
		switch c := srv.(type) {
		case single:
			password, user = c.Options().Password, c.Options().Username
		case clustered:
			password, user = c.Options().Password, c.Options().Username
		}
		if password != "new" || user != "u" {
			t.Errorf("%s: the password of the options is not used", url)
		}
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestTheEngineNeverRepeatsACallByItself(t *testing.T) {
	for _, url := range []string{"redis://host", "redis-cluster://host"} {
		srv, _, err := connect(Options{URL: url}.withDefaults())
		if err != nil {
			t.Fatal(err)
		}
		var retries int
		switch c := srv.(type) {
		case single:
			retries = c.Options().MaxRetries
		case clustered:
			retries = c.Options().MaxRetries
		}
		if retries > 0 {
			t.Errorf("%s: a script would be sent %d times again", url, retries)
		}
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestAnUnreachableServerIsUnavailableWithoutItsPassword(t *testing.T) {
	const secret = "s3cr3t-passw0rd"
	s := openStock(t, "redis://user:"+secret+"@127.0.0.1:1")
	_, err := s.Reserve(t.Context(), drop.ReserveRequest{Lot: "l", User: "u", Key: "k", Qty: 1})
	wantCode(t, err, fault.Unavailable)
	if strings.Contains(err.Error(), secret) {
		t.Fatal("the error shows the password")
	}
}

func TestWrongCredentialsAreNamed(t *testing.T) {
	_, _, r := newShop(t)
	s := openStock(t, "redis://:wr0ng-secret@"+r.Addr())
	_, err := s.Reserve(t.Context(), drop.ReserveRequest{Lot: "l", User: "u", Key: "k", Qty: 1})
	wantCode(t, err, fault.Unavailable)
	if !strings.Contains(fault.HintOf(err), "password") || strings.Contains(err.Error(), "wr0ng-secret") {
		t.Fatalf("%v, hint %q", err, fault.HintOf(err))
	}
}

func TestTLSThatIsNotSpokenIsNamed(t *testing.T) {
	testkit.Long(t)
	_, _, r := newShop(t)
	s := openStock(t, "rediss://"+r.Addr())
	_, err := s.Reserve(t.Context(), drop.ReserveRequest{Lot: "l", User: "u", Key: "k", Qty: 1})
	wantCode(t, err, fault.Unavailable)
	if !strings.Contains(err.Error(), "TLS") || !strings.Contains(fault.HintOf(err), "redis:// instead of rediss://") {
		t.Errorf("%v, hint %q", err, fault.HintOf(err))
	}
	if _, err := s.Lots(t.Context()); !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "TLS") {
		t.Errorf("listing lots: %v", err)
	}
}

// FuzzParseRecord: what is no record is an error, never a crash; what is one has bounds.
func FuzzParseRecord(f *testing.F) {
	for _, record := range []string{"h\tann\t1/0\t1\t2\t1700000000000\t1600000000000", "h\tann\t1/0\t1\t2\t1700000000000\t1600000000000\t5", "c\tann\t1/0\t1\t2\t3\t0\t0\t0\tpay\t\t1600000000000",
		"r\t1/0\t1\t2\t3\t1600000000000\t", "x\t1/0\t1\t2\t3\t1600000000000\tann\t", "f\t1/0\t0\t2\t3\t1600000000000\t1\t", "", "h", "\t\t\t", "c\t\t\t-1\t1e3\t9223372036854775808"} {
		f.Add(record)
	}
	f.Fuzz(func(t *testing.T, record string) {
		r, err := parseRecord("l", "aaaaaaaaaaaaaaaaaaaaaaaaaa", record)
		if err != nil {
			if r != (drop.Reservation{}) || fault.CodeOf(err) != fault.Failed {
				t.Fatalf("%+v, %v", r, err)
			}
			return
		}
		if _, err := drop.ParseState(string(r.State)); err != nil || r.ID.Attempt == "" {
			t.Fatalf("%q reads as %+v", record, r)
		}
	})
}

// FuzzRedisURL: no URL makes the engine crash, and none shows its password.
func FuzzRedisURL(f *testing.F) {
	for _, url := range []string{"redis://u:%s@h:1/0", "rediss://:%s@h", "unix://u:%s@/p?db=0", "redis-sentinel://u:%s@a,b/m", "redis-cluster://u:%s@a:1,b:2", "redis://:%s", "redis-cluster://a:%s", "%s", "redis://h/%s", "redis://h?x=%s"} {
		f.Add(url)
	}
	const secret = "Zq7secretZq7"
	f.Fuzz(func(t *testing.T, pattern string) {
		s, err := Open(Options{URL: strings.ReplaceAll(pattern, "%s", secret)})
		if err == nil {
			_ = s.Close()
			return
		}
		if strings.Contains(err.Error()+fault.HintOf(err), secret) {
			t.Fatalf("the error shows the password: %v", err)
		}
	})
}
