package drop

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestATokenIsReadBack(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		token, id := NewToken()
		got, hash, ok := ReadToken(token)
		if !ok || got != id || hash == (KeyHash{}) || seen[id] || seen[token] || CheckKeyID(id) != nil {
			t.Fatalf("%s: %s, %v", token, got, ok)
		}
		seen[id], seen[token] = true, true
		for i := range token { // every byte counts
			other := token[:i] + string('a'+(token[i]-'a'+1)%26) + token[i+1:]
			if otherID, otherHash, ok := ReadToken(other); ok && (otherHash.Matches(hash) || i < len(tokenPrefix) || otherID == id && i < len(tokenPrefix)+keyIDLen) {
				t.Errorf("%s is as good as %s", other, token)
			}
		}
	}
}

func FuzzReadToken(f *testing.F) {
	token, _ := NewToken()
	for _, s := range []string{token, token[1:], token + "a", token + "\n", " " + token, strings.ToUpper(token), "drk_", "drk__", "", "drk_aaaaaaaa_" + strings.Repeat("\xff", secretLen), strings.Replace(token, "a", "é", 1)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, hash, ok := ReadToken(s)
		if !ok {
			if id != "" || hash != (KeyHash{}) {
				t.Errorf("%q is no token, and yet %q", s, id)
			}
			return
		}
		if CheckKeyID(id) != nil || len(s) != tokenLen || !strings.HasPrefix(s, "drk_"+id+"_") || strings.Trim(s, "_abcdefghijklmnopqrstuvwxyz234567") != "" {
			t.Errorf("%q was taken for a token of %q", s, id)
		}
	})
}

func TestTenantsAndScopes(t *testing.T) {
	for s, ok := range map[string]bool{
		"shop": true, "a": true, "0-9": true, "a-": true, strings.Repeat("x", 32): true,
		"": false, "-a": false, "A": false, "a:b": false, "a b": false, "ä": false, "a_b": false, "a\x00": false, strings.Repeat("x", 33): false,
	} {
		if err := CheckTenant(s); (err == nil) != ok {
			t.Errorf("CheckTenant(%q) = %v", s, err)
		}
	}
	for _, s := range Scopes() {
		if got, err := ParseScope(string(s)); err != nil || got != s {
			t.Errorf("%s: %v", s, err)
		}
	}
	for _, s := range []string{"", "Read", "all", "read,reserve", "*"} {
		if _, err := ParseScope(s); err == nil {
			t.Errorf("%q is a scope", s)
		}
	}
}

func TestAKeyAsJSON(t *testing.T) {
	token, id := NewToken()
	_, hash, _ := ReadToken(token)
	key := APIKey{ID: id, Tenant: "shop", Scopes: []Scope{ScopeRead, ScopeSettle}, Hash: hash}
	text, err := json.Marshal(key)
	if err != nil || strings.Contains(string(text), token) || !strings.Contains(string(text), `"hash":"`+hash.String()+`"`) {
		t.Fatalf("%s, %v", text, err)
	}
	var back APIKey
	if err := json.Unmarshal(text, &back); err != nil || back.Hash != key.Hash || back.Check() != nil || !back.Has(ScopeSettle) || back.Has(ScopeAdmin) {
		t.Errorf("%+v, %v", back, err)
	}
	for _, bad := range []string{`""`, `"ab"`, `"` + hash.String() + `0"`, `"` + strings.Repeat("é", 32) + `"`, `7`} {
		if err := json.Unmarshal([]byte(`{"hash":`+bad+`}`), &back); err == nil {
			t.Errorf("%s is a hash", bad)
		}
	}
	for name, spoil := range map[string]func(*APIKey){
		"id": func(k *APIKey) { k.ID = "short" }, "tenant": func(k *APIKey) { k.Tenant = "" }, "no scope": func(k *APIKey) { k.Scopes = nil },
		"scope": func(k *APIKey) { k.Scopes = []Scope{"root"} }, "hash": func(k *APIKey) { k.Hash = KeyHash{} }, "name": func(k *APIKey) { k.Name = "a\nb" },
	} {
		bad := key
		if spoil(&bad); bad.Check() == nil {
			t.Errorf("a bad %s passed", name)
		}
	}
}

// Somebody pastes the token where the id belongs: the error must not repeat it.
func TestAPastedTokenIsNotRepeated(t *testing.T) {
	token, _ := NewToken()
	for _, s := range []string{token, token[4:], token[13:], "x" + token} {
		if err := CheckKeyID(s); err == nil || strings.Contains(err.Error(), token[20:30]) {
			t.Errorf("%v", err)
		}
	}
}
