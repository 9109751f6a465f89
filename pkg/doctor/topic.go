package doctor

import "github.com/dropctl/dropctl/pkg/drop"

// topic checks what lies between the relay and the ledger. shards is the ledger's, 0 if it is not known.
func (e *exam) topic(target string, h drop.TopicHealth, err error, shards int) {
	say := func(check string, v verdict) { e.say("kafka", target, check, v) }
	if err != nil {
		say("reachable", unreachable(err))
		return
	}
	say("reachable", good("it answers"))
	say("topic", fits(h, shards))
	if h.Exists {
		say("acks", acknowledges(h))
	}
}

// fits judges whether the topic is one for this shop.
func fits(h drop.TopicHealth, shards int) verdict {
	switch {
	case !h.Exists:
		return bad(noTopicYet, "say --kafka-replicas to the first worker, or make it yourself", "there is no topic yet: the first worker makes it")
	case shards > 0 && h.Partitions != shards:
		return bad(wrongTopic, "name another topic, which is made as it should be: --kafka-topic", "%d partitions for %d shards: workers refuse it", h.Partitions, shards)
	case h.Compacted:
		return bad(wrongTopic, "set cleanup.policy=delete on the topic", "its cleanup.policy is compact: it takes no records without a key")
	}
	return good("%d partitions", h.Partitions)
}

// acknowledges judges whether each partition can take a record so that it stays.
func acknowledges(h drop.TopicHealth) verdict {
	const fix = "see that all brokers run; Redis keeps the events until then"
	switch {
	case len(h.Leaderless) > 0:
		return bad(leaderless, fix, "nobody leads the partitions %s", someNumbers(h.Leaderless))
	case len(h.Weak) > 0:
		return bad(cannotWrite, fix, "fewer than %d replicas of the partitions %s are in sync: they take no records", h.Needed, someNumbers(h.Weak))
	case h.Replicas == 1:
		return bad(oneCopy, "give the topic more replicas", "one copy of each record; what is lost there is sent again from Redis")
	case h.NoSettings != "":
		return notTold("how many replicas have to be in sync is not known: "+h.NoSettings, "let the user describe the topic's configuration")
	}
	return good("%d copies, %d of them in sync before a record counts", h.Replicas, h.Needed)
}
