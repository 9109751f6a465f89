package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

const (
	completionBudget = 300 * time.Millisecond // longer feels like a hung shell
	completionLimit  = 200                    // more helps nobody and slows the shell down
)

// candidate is one word that completion offers, with what the user needs to recognise it.
type candidate struct {
	word  string
	about string // may be empty
}

// completeFrom offers words that a server knows, for every argument of a command:
//
//	cmd.ValidArgsFunction = a.completeFrom(listLots)
//
// list gets a context that ends after 300 ms and the prefix typed so far. Whatever goes wrong, completion
// is silent: it offers nothing.
func (a *app) completeFrom(list func(ctx context.Context, prefix string) ([]candidate, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		const nothingElse = cobra.ShellCompDirectiveNoFileComp
		// Settings come from the flags typed before the word that is being completed.
		if a.resolve(cmd) != nil {
			return nil, nothingElse
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completionBudget)
		defer cancel()
		found := make(chan []candidate, 1)
		go func() { // a driver may take its time to notice the context
			defer func() { _ = recover() }()
			if c, err := list(ctx, prefix); err == nil {
				found <- c
			}
		}()
		select {
		case <-ctx.Done():
			return nil, nothingElse
		case all := <-found:
			return offer(all, args, prefix), nothingElse
		}
	}
}

// completeWords offers words that are always the same. It dials nothing and reads no settings.
func completeWords(words ...string) cobra.CompletionFunc {
	all := make([]candidate, len(words))
	for i, w := range words {
		all[i].word = w
	}
	return func(_ *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return offer(all, nil, prefix), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeList offers words for a flag that takes several, separated by commas.
func completeList(words ...string) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		typed, last := "", prefix
		if comma := strings.LastIndexByte(prefix, ','); comma >= 0 {
			typed, last = prefix[:comma+1], prefix[comma+1:]
		}
		var list []string
		for _, w := range words {
			if strings.HasPrefix(w, last) && !slices.Contains(strings.Split(typed, ","), w) {
				list = append(list, typed+w)
			}
		}
		return list, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
}

// wordsOf are the texts of words that have a type of their own.
func wordsOf[T ~string](list []T) []string {
	all := make([]string, len(list))
	for i, w := range list {
		all[i] = string(w)
	}
	return all
}

// firstOnly offers words for the first argument and nothing for the others.
func firstOnly(f cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return f(cmd, args, prefix)
	}
}

// offer keeps what fits the prefix and was not named before.
func offer(all []candidate, args []string, prefix string) []string {
	var list []string
	for _, c := range all {
		if len(list) == completionLimit {
			break
		}
		if !strings.HasPrefix(c.word, prefix) || slices.Contains(args, c.word) {
			continue
		}
		list = append(list, cobra.CompletionWithDesc(c.word, c.about))
	}
	return list
}
