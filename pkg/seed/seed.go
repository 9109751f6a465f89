// Package seed reads lots from files and flags, compares them with what is there, and creates or changes
// what differs. It may be run again at any time: what is done stays done, what a crash left half done is
// finished, and stock that Redis lost is never made anew.
package seed
