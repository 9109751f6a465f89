// Command dropctl runs drops that never oversell. Here is only what belongs to a process: signals come
// in, an exit status goes out. Everything else is in pkg/cli.
package main

import (
	"context"
	"math"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/dropctl/dropctl/pkg/cli"
)

// ballast is how much the garbage collector takes for alive beside what is. It is never touched, so it takes no memory itself;
// but as much garbage more may gather. Without it, a process with a few MB alive is collected eighteen times a second at full speed, and
// each time its pipelines to Redis wait for a millisecond. Where GOMEMLIMIT is set there is none: it would count towards that.
const ballast = 64 << 20

func main() { os.Exit(run()) }

func run() int {
	if debug.SetMemoryLimit(-1) == math.MaxInt64 {
		heap := make([]byte, ballast)
		defer runtime.KeepAlive(heap)
	}
	ctx, stop := untilSignal(context.Background())
	defer stop()
	return cli.Main(ctx, os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Getenv: os.Getenv})
}
