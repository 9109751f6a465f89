package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dropctl/dropctl/pkg/api"
)

var described = sync.OnceValue(func() *huma.OpenAPI { return api.Describe() })

// operationOf finds the operation that a request calls; nil if the document has none.
func operationOf(method, path string) *huma.Operation {
	path, _, _ = strings.Cut(path, "?")
	for template, item := range described().Paths {
		pattern := strings.ReplaceAll(regexp.QuoteMeta(template), `\{lot\}`, "[^/]+")
		pattern = strings.ReplaceAll(pattern, `\{id\}`, "[^/]+")
		if !regexp.MustCompile("^" + pattern + "$").MatchString(path) {
			continue
		}
		return map[string]*huma.Operation{http.MethodGet: item.Get, http.MethodHead: item.Get, http.MethodPost: item.Post, http.MethodPut: item.Put}[method]
	}
	return nil
}

// documented fails the test if an answer is none that the document promises.
func documented(t testing.TB, method, path string, ans answer) {
	t.Helper()
	kind, _, _ := strings.Cut(ans.header.Get("Content-Type"), ";")
	op := operationOf(method, path)
	if op == nil { // then it is a problem of its own
		if ans.status != http.StatusNotFound && ans.status != http.StatusMethodNotAllowed && ans.status != http.StatusUnauthorized {
			t.Errorf("%s %s is not documented, and answers %d", method, path, ans.status)
		}
		if kind != "application/problem+json" {
			t.Errorf("%s %s answers %s", method, path, kind)
		}
		return
	}
	promised := op.Responses[fmt.Sprint(ans.status)]
	if promised == nil {
		t.Errorf("%s %s answered %d, which is not documented: %s", method, path, ans.status, ans.body)
		return
	}
	media := promised.Content[kind]
	if media == nil {
		t.Errorf("%s %s answered %d with %q, which is not documented", method, path, ans.status, kind)
		return
	}
	if method == http.MethodHead || !strings.HasSuffix(kind, "json") {
		return
	}
	var v any
	if err := json.Unmarshal(ans.body, &v); err != nil {
		t.Errorf("%s %s answered %d with no JSON: %v", method, path, ans.status, err)
		return
	}
	if bad := violations(media.Schema, v); bad != "" {
		t.Errorf("%s %s answered %d against its schema: %s\n%s", method, path, ans.status, bad, ans.body)
	}
}

// violations says what of a value is not as a schema wants it; "" if all is.
func violations(schema *huma.Schema, v any) string {
	var res huma.ValidateResult
	huma.Validate(described().Components.Schemas, schema, huma.NewPathBuffer(nil, 0), huma.ModeReadFromServer, v, &res)
	var bad []string
	for _, err := range res.Errors {
		bad = append(bad, err.Error())
	}
	return strings.Join(bad, "; ")
}
