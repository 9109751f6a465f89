package lab

import "testing"

func TestOnlyWhatIsWrongIsTold(t *testing.T) {
	for text, want := range map[string]string{
		"creating files ... ok\nFATAL:  no space\nchild exited\ninitdb: error: gave up\n": "FATAL:  no space\ninitdb: error: gave up\n",
		"who knows\n": "who knows\n",
		"":            "",
	} {
		if got := string(complaints([]byte(text))); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
