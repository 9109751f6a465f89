package bench

import (
	"os"
	"testing"

	"github.com/dropctl/dropctl/pkg/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }
