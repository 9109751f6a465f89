// Command dropctl runs drops that never oversell. Here is only what belongs to a process: signals come
// in, an exit status goes out. Everything else is in pkg/cli.
package main

import (
	"context"
	"os"

	"github.com/dropctl/dropctl/pkg/cli"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := untilSignal(context.Background())
	defer stop()
	return cli.Main(ctx, os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Getenv: os.Getenv})
}
