package api

import (
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dropctl/dropctl/pkg/client"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

var exampleTime = time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC)

// Document returns the OpenAPI 3.1 document of the API. It is made from the routes that are served and from the very types
// that clients use, and needs no store.
func (a *API) Document() ([]byte, error) { return a.document() }

func writeDocument() ([]byte, error) { return json.Marshal(describe()) }

func (a *API) showDocument(w http.ResponseWriter, _ *http.Request) error {
	doc, err := a.document()
	if err != nil {
		return err
	}
	w.Header()["Content-Type"] = typeJSON
	_, _ = w.Write(doc) // if this fails the caller is gone
	return nil
}

// describe writes the document of all routes.
func describe() *huma.OpenAPI {
	doc := &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info: &huma.Info{Title: "dropctl", Version: "1",
			Description: "Hands out exactly what exists, at once, to people who then pay within minutes.\n\n" +
				"Every call that changes something may be repeated as it is: it acts once. Bodies are single JSON objects in UTF-8 of at most 64 KiB; a field twice, an unknown one " +
				"(but from a payment gateway) or a number of units with a fraction is refused. Times are RFC 3339 in UTC; durations are seconds. " +
				"What goes wrong is an RFC 9457 problem, whose `code` stays the same for ever and whose `instance` is the id in the header X-Request-Id. " +
				"Answers 429 and 503 say in Retry-After when to ask again."},
		Components: &huma.Components{
			Schemas: huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer),
			SecuritySchemes: map[string]*huma.SecurityScheme{
				"bearer": {Type: "http", Scheme: "bearer", Description: "An API key: dropctl key create. It has scopes, which each call names, and perhaps a tenant, whose users and reservations are its own."},
				"header": {Type: "apiKey", In: "header", Name: "X-API-Key", Description: "The same key in a header of its own."},
			},
		},
	}
	d := describer{schemas: doc.Components.Schemas}
	d.schemas.Schema(reflect.TypeFor[client.Availability](), true, "")
	for _, rt := range allRoutes() {
		doc.AddOperation(d.operation(rt))
	}
	return doc
}

// describer writes operations. Types that it meets become schemas.
type describer struct{ schemas huma.Registry }

func (d describer) schema(example any) *huma.Schema {
	return d.schemas.Schema(reflect.TypeOf(example), true, "")
}

func (d describer) operation(rt route) *huma.Operation {
	op := &huma.Operation{Method: rt.method, Path: rt.path, OperationID: rt.id, Summary: rt.summary, Description: rt.about, Responses: map[string]*huma.Response{}}
	if rt.scope != "" {
		op.Description = strings.TrimSpace(rt.about + "\n\nScope: " + string(rt.scope) + ".")
		scopes := []string{string(rt.scope)}
		op.Security = []map[string][]string{{"bearer": scopes}, {"header": scopes}}
	}
	for part := range strings.SplitSeq(rt.path, "/") {
		if name, ok := strings.CutPrefix(part, "{"); ok {
			op.Parameters = append(op.Parameters, pathParam(strings.TrimSuffix(name, "}")))
		}
	}
	for _, p := range rt.params {
		op.Parameters = append(op.Parameters, d.param(p))
	}
	if rt.body != nil {
		op.RequestBody = &huma.RequestBody{Required: d.needsBody(rt.body), Content: map[string]*huma.MediaType{"application/json": {Schema: d.schema(rt.body), Example: rt.body}}}
	}
	for _, ans := range rt.answers {
		op.Responses[strconv.Itoa(ans.status)] = d.response(ans)
	}
	d.refusals(op, rt)
	return op
}

// needsBody reports whether a body has a field that must be there.
func (d describer) needsBody(body any) bool {
	return len(d.schemas.Schema(reflect.TypeOf(body), false, "").Required) > 0
}

func pathParam(name string) *huma.Param {
	p := &huma.Param{Name: name, In: "path", Required: true, Description: "Id of the lot.", Example: "truffle-99",
		Schema: &huma.Schema{Type: huma.TypeString, Pattern: `^([A-Za-z0-9][A-Za-z0-9._-]{0,47}:)?[A-Za-z0-9][A-Za-z0-9._-]{0,47}$`}}
	if name == "id" {
		p.Description, p.Example, p.Schema = "Id of the reservation.", exampleID, &huma.Schema{Type: huma.TypeString}
	}
	return p
}

func (d describer) param(p param) *huma.Param {
	out := &huma.Param{Name: p.name, In: p.in, Required: p.required, Description: p.about, Schema: d.schema(p.example)}
	if p.example != "" {
		out.Example = p.example
	}
	return out
}

func (d describer) response(ans answerDoc) *huma.Response {
	kind := ans.kind
	if kind == "" {
		kind = "application/json"
	}
	out := &huma.Response{Description: ans.about, Content: map[string]*huma.MediaType{kind: {Schema: d.schema(ans.example), Example: ans.example}}}
	for _, h := range ans.headers {
		if out.Headers == nil {
			out.Headers = map[string]*huma.Header{}
		}
		out.Headers[h.name] = &huma.Header{Description: h.about, Schema: d.schema(h.example)}
	}
	return out
}

// refusals adds every status that an operation may be refused with, with an example of each code.
func (d describer) refusals(op *huma.Operation, rt route) {
	codes := append([]fault.Code{fault.Failed, fault.RateLimited}, rt.refusals...)
	if rt.scope != "" {
		codes = append(codes, fault.Unauthorized, fault.Forbidden, fault.Unavailable)
	}
	if rt.body != nil {
		codes = append(codes, fault.TooLarge, fault.UnsupportedMedia)
	}
	if rt.body != nil || rt.params != nil || strings.Contains(rt.path, "{") {
		codes = append(codes, fault.Invalid)
	}
	if strings.Contains(rt.path, "{") {
		codes = append(codes, fault.NotFound) // what the path cannot name
	}
	slices.Sort(codes)
	for _, code := range slices.Compact(codes) {
		d.refusal(op, rt, code)
	}
}

func (d describer) refusal(op *huma.Operation, rt route, code fault.Code) {
	entry := fault.Lookup(code)
	status := strconv.Itoa(entry.HTTP)
	out := op.Responses[status]
	if out == nil {
		out = &huma.Response{Content: map[string]*huma.MediaType{}}
		op.Responses[status] = out
	}
	media := out.Content[typeProblem[0]]
	if media == nil {
		media = &huma.MediaType{Schema: d.schema(client.Problem{}), Examples: map[string]*huma.Example{}}
		out.Content[typeProblem[0]] = media
	}
	media.Examples[string(code)] = &huma.Example{Summary: entry.Title, Value: exampleProblem(entry, rt.scope)}
	out.Description = strings.TrimPrefix(out.Description+", "+entry.Title, ", ")
	switch code {
	case fault.Unauthorized:
		out.Headers = map[string]*huma.Header{"WWW-Authenticate": {Description: "How to name a key.", Schema: &huma.Schema{Type: huma.TypeString}}}
	case fault.RateLimited, fault.Unavailable:
		out.Headers = map[string]*huma.Header{"Retry-After": {Description: "Seconds until it is worth asking again.", Schema: &huma.Schema{Type: huma.TypeInteger}}}
	}
}

// exampleProblem is how a code looks in an answer.
func exampleProblem(entry fault.Entry, scope drop.Scope) client.Problem {
	f := fault.New(entry.Code, "%s", entry.Meaning)
	switch entry.Code {
	case fault.SoldOut:
		f = fault.New(entry.Code, "lot truffle-99 has 0 of 2 units left").With("available", int64(0)).With("remaining", int64(3))
	case fault.HoldExists:
		f = fault.New(entry.Code, "the user already holds 2 of lot truffle-99 until 2026-12-01T10:05:00Z").With("reservation", exampleID).
			With("deadline", exampleTime.Add(client.Duration(300))).With("remaining_seconds", 299.8).With("remaining", int64(1))
	case fault.Invalid:
		f = fault.New(entry.Code, "qty is not a whole number").WithField("qty").WithHint("use digits without a fraction, exponent or quotes")
	case fault.Forbidden:
		f = f.With("scope", string(scope))
	}
	p := problemOf(f, entry)
	p.Instance = "4JXF2ZBDMZLQHE7QK3MN5WRTYA"
	return p
}
