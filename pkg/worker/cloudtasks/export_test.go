package cloudtasks

import (
	"net/http"
	"time"

	"golang.org/x/oauth2"
)

// AgeKeys lets the keys of tokens look as if they were fetched so long ago, and lets them be fetched again.
func (r *Receiver) AgeKeys(by time.Duration) {
	k := r.signer.keys
	known := *k.known.Load()
	known.fetched, known.until = known.fetched.Add(-by), known.until.Add(-by)
	k.known.Store(&known)
	k.tried = k.tried.Add(-by)
}

// Through lets a queue with credentials call a server whose certificate a test has made.
func (q *Queue) Through(base http.RoundTripper) { q.http.Transport.(*oauth2.Transport).Base = base }
