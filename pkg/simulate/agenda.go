package simulate

import "time"

// event is what is due at some time of a run: the next call of a visit, or without one the arrival of a user.
type event struct {
	at    time.Duration // after the start
	visit *visit
	who   who
}

// agenda is a heap of events, the earliest first.
type agenda []event

// order makes a heap of events in any order.
func (a agenda) order() {
	for i := len(a)/2 - 1; i >= 0; i-- {
		a.sink(i)
	}
}

func (a *agenda) push(e event) {
	h := append(*a, e)
	*a = h
	for i := len(h) - 1; i > 0 && h[i].at < h[(i-1)/2].at; i = (i - 1) / 2 {
		h[i], h[(i-1)/2] = h[(i-1)/2], h[i]
	}
}

func (a *agenda) pop() event {
	h, last := *a, len(*a)-1
	first := h[0]
	h[0], h[last] = h[last], event{}
	*a = h[:last]
	a.sink(0)
	return first
}

func (a agenda) sink(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(a); child++ {
			if a[child].at < a[least].at {
				least = child
			}
		}
		if least == i {
			return
		}
		a[i], a[least] = a[least], a[i]
		i = least
	}
}
