package doctor

import "github.com/dropctl/dropctl/pkg/drop"

// tasks checks the task queue between the relay and the ledger.
func (e *exam) tasks(target string, h drop.TasksHealth, err error) {
	if err != nil {
		e.say("cloudtasks", target, "reachable", unreachable(err))
		return
	}
	e.say("cloudtasks", target, "reachable", good("it answers"))
	e.say("cloudtasks", target, "queue", delivers(h))
}

// delivers judges whether what workers put into the queue comes out again.
func delivers(h drop.TasksHealth) verdict {
	switch {
	case h.Hidden:
		return notTold("this process may not look at the queue", "give its account roles/cloudtasks.viewer on the queue")
	case !h.Exists:
		return bad(noQueue, "make it: gcloud tasks queues create; or correct --tasks-queue", "there is no such queue: nothing reaches the ledger")
	case h.Stands != "":
		return bad(queueStands, "let it go on: gcloud tasks queues resume; Redis keeps the events until then", "the queue is %s: nothing reaches the ledger", h.Stands)
	case h.Delivered > 0 && h.Delivered < h.Created:
		return bad(slowQueue, "raise the queue's rate: gcloud tasks queues update --max-dispatches-per-second; or lower tasks-per-second",
			"it delivers %.0f tasks a second, and a worker may create %.0f", h.Delivered, h.Created)
	}
	return good("it delivers")
}
