package cloudtasks

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

const (
	fullTask = 256 << 10 // bytes at which a task is closed
	// largestTask is what one entry alone may make of it: the service takes 1 MiB, and writes the body in base64.
	largestTask = 640 << 10
	mostEntries = 10_000 // of one task
	longestID   = 64     // of an entry in its stream
)

// task is the body of a task: consecutive entries of one shard, all of one installation. Sending counts how often they were
// sent, from 1: with another number they are another task, whatever became of the one before.
type task struct {
	Installation string  `json:"installation"`
	Schema       string  `json:"schema"` // drop.SchemaVersion of the entries
	Shard        int     `json:"shard"`
	Sending      int     `json:"sending"`
	Entries      []entry `json:"entries"`
}

// entry is an outbox entry on its way.
type entry struct {
	ID   string `json:"id"`
	Time int64  `json:"time"` // Unix milliseconds, as the script that wrote it
	Body string `json:"body"`
}

// packed is the body of a task that is ready to be sent. Its name is the hash of the whole content, sending number
// included: what is sent twice by mistake is one task, and what is sent again on purpose is another.
type packed struct {
	name string
	body []byte
	full bool
}

// packer packs entries of a shard into tasks.
type packer struct {
	installation   string
	shard, sending int
	entries        [][]byte
	size           int
	tasks          []packed
}

// pack returns entries as tasks, in order, and apart from them those that no task can carry: larger than a task, of another
// installation, or not text in UTF-8, which JSON would change on the way. The scripts write no such entry.
func pack(installation string, shard int, entries []drop.OutboxEntry, sending int) (tasks []packed, misfits []drop.OutboxEntry, err error) {
	p := &packer{installation: installation, shard: shard, sending: sending}
	for _, e := range entries {
		en := entry{e.ID, e.Time.UnixMilli(), e.Body}
		text, err := encode(en)
		if err != nil {
			return nil, nil, err
		}
		if e.Installation != installation || !en.sound() || !utf8.ValidString(e.ID) || !utf8.ValidString(e.Body) || len(text) > largestTask {
			misfits = append(misfits, e)
			continue
		}
		if err := p.add(text); err != nil {
			return nil, nil, err
		}
	}
	err = p.close(false)
	return p.tasks, misfits, err
}

// add puts an entry into the open task, or into the next one if it would be too much.
func (p *packer) add(text []byte) error {
	if p.size+len(text) > fullTask || len(p.entries) == mostEntries {
		if err := p.close(true); err != nil {
			return err
		}
	}
	p.entries, p.size = append(p.entries, text), p.size+len(text)+1
	return nil
}

// close ends the open task.
func (p *packer) close(full bool) error {
	if len(p.entries) == 0 {
		return nil
	}
	head, err := encode(task{Installation: p.installation, Schema: drop.SchemaVersion, Shard: p.shard, Sending: p.sending, Entries: []entry{}})
	if err != nil {
		return err
	}
	body := append(bytes.TrimSuffix(head, []byte("]}")), bytes.Join(p.entries, []byte(","))...)
	body = append(body, "]}"...)
	hash := sha256.Sum256(body)
	p.tasks = append(p.tasks, packed{name: hex.EncodeToString(hash[:]), body: body, full: full || p.size >= fullTask})
	p.entries, p.size = nil, 0
	return nil
}

// encode writes JSON without the escapes that only a page needs.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fault.Wrap(fault.Failed, err, "a task could not be written")
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// decode reads the body of a task, and accepts nothing that pack does not write. Errors: invalid for what no repetition
// makes better; unavailable for what a newer dropctl has sent, which another server may know.
func decode(body []byte) (task, error) {
	var t task
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	err := dec.Decode(&t)
	if err == nil {
		if _, err = dec.Token(); errors.Is(err, io.EOF) {
			err = nil
		} else {
			err = errors.New("there is something behind it")
		}
	}
	if err == nil {
		err = t.check(body)
	}
	if err != nil && newer(body) {
		return task{}, fault.New(fault.Unavailable, "the task was written by a newer dropctl").WithHint("update this server: a task that it refuses comes again")
	}
	if err != nil {
		return task{}, fault.Wrap(fault.Invalid, err, "the body is not a task of dropctl").WithField("body")
	}
	return t, nil
}

// newer reports whether a body is a task in a format of the future.
func newer(body []byte) bool {
	var head struct {
		Installation string `json:"installation"`
		Schema       string `json:"schema"`
	}
	if json.Unmarshal(body, &head) != nil || head.Installation == "" {
		return false
	}
	ours, _ := strconv.Atoi(drop.SchemaVersion)
	theirs, err := strconv.Atoi(head.Schema)
	return err == nil && theirs > ours
}

func (t task) check(body []byte) error {
	switch {
	case !utf8.Valid(body): // the decoder would have replaced it in silence
		return errors.New("it is not text in UTF-8")
	case t.Installation == "":
		return errors.New("it names no installation")
	case t.Schema != drop.SchemaVersion:
		return errors.New("its schema is unknown")
	case t.Shard < 0 || t.Sending < 1:
		return errors.New("its shard or its sending number is out of range")
	case len(t.Entries) == 0 || len(t.Entries) > mostEntries:
		return errors.New("it has no entries, or too many")
	}
	for _, e := range t.Entries {
		if !e.sound() {
			return errors.New("an entry has no id, no body or no time")
		}
	}
	return nil
}

// sound reports whether an entry has all that one of the scripts has.
func (e entry) sound() bool {
	return e.ID != "" && len(e.ID) <= longestID && e.Body != "" && e.Time >= 0 && e.Time <= drop.MaxSeq
}

// outbox returns the entries as they were in the outbox.
func (t task) outbox() []drop.OutboxEntry {
	entries := make([]drop.OutboxEntry, len(t.Entries))
	for i, e := range t.Entries {
		entries[i] = drop.OutboxEntry{ID: e.ID, Entry: drop.Entry{Installation: t.Installation, Time: time.UnixMilli(e.Time).UTC(), Body: e.Body}}
	}
	return entries
}
