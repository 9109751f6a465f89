package doctor

// Result says how a check ended.
type Result string

// The results, the worst first.
const (
	Fail    Result = "fail"
	Warn    Result = "warn"
	Unknown Result = "unknown" // it could not be found out; blocks nothing
	OK      Result = "ok"
)

var worstFirst = []Result{Fail, Warn, Unknown, OK}

// Profile says how strictly findings are judged.
type Profile string

// The profiles.
const (
	Development Profile = "development"
	Production  Profile = "production"
)

// Profiles lists the profiles.
func Profiles() []string { return []string{string(Development), string(Production)} }

// finding names what a rule found.
type finding string

const (
	fine   finding = "fine"
	hidden finding = "hidden"

	silent      finding = "silent"
	lostReplica finding = "lost replica"
	isReplica   finding = "is a replica"
	tooOld      finding = "too old"
	canEvict    finding = "can evict"
	noCeiling   finding = "no ceiling"
	tight       finding = "tight"
	full        finding = "full"
	loading     finding = "loading"
	diskError   finding = "disk error"
	rewriteFail finding = "rewrite failed"
	tooWeak     finding = "too weak"
	noAOF       finding = "no append-only file"
	syncSecond  finding = "synced each second"
	syncNever   finding = "never synced"
	syncLate    finding = "synced late"
	startsEmpty finding = "starts empty"
	startsOld   finding = "starts old"
	oneCopy     finding = "one copy"
	splitBrain  finding = "split brain"
	tooFew      finding = "too few replicas"
	behind      finding = "behind"
	pollsOnly   finding = "polls only"
	allOrNone   finding = "all or none"
	mixed       finding = "mixed versions"

	shut       finding = "shut"
	wrongKey   finding = "wrong key"
	notSold    finding = "not sold"
	lagging    finding = "lagging"
	halfFull   finding = "half full"
	nearlyFull finding = "nearly full"

	standby       finding = "standby"
	notMigrated   finding = "not migrated"
	newerSchema   finding = "newer schema"
	noTimeout     finding = "no timeout"
	noTrigger     finding = "no trigger"
	owns          finding = "owns"
	noRights      finding = "no rights"
	crowded       finding = "crowded"
	noRoom        finding = "no room"
	asynchronous  finding = "asynchronous"
	commitLoses   finding = "commit may be lost"
	commitHangs   finding = "commit hangs"
	deadLetters   finding = "dead letters"
	stopped       finding = "stopped"
	noAnswer      finding = "no answer"
	refundRefused finding = "refund refused"
	hookFails     finding = "hook fails"
	noWorker      finding = "no worker"
	partIdle      finding = "part idle"
	otherLimits   finding = "other limits"

	wrongTopic  finding = "wrong topic"
	leaderless  finding = "leaderless"
	cannotWrite finding = "cannot write"
	noTopicYet  finding = "no topic yet"
	noQueue     finding = "no queue"
	queueStands finding = "queue stands"
	slowQueue   finding = "slow queue"

	foreign finding = "foreign"
	emptied finding = "emptied"
	skewed  finding = "skewed"
)

// levels says how bad each finding is: in development, and in production.
var levels = map[finding][2]Result{
	fine:   {OK, OK},
	hidden: {Unknown, Unknown},

	// Wrong anywhere: units could be lost, or nothing can be sold or recorded.
	silent:      {Fail, Fail},
	isReplica:   {Fail, Fail},
	tooOld:      {Fail, Fail},
	canEvict:    {Fail, Fail},
	full:        {Fail, Fail},
	loading:     {Fail, Fail},
	diskError:   {Fail, Fail},
	tooWeak:     {Fail, Fail},
	tooFew:      {Fail, Fail},
	shut:        {Fail, Fail},
	wrongKey:    {Fail, Fail},
	notSold:     {Fail, Fail},
	lagging:     {Fail, Fail},
	nearlyFull:  {Fail, Fail},
	standby:     {Fail, Fail},
	notMigrated: {Fail, Fail},
	noTrigger:   {Fail, Fail},
	noRights:    {Fail, Fail},
	noRoom:      {Fail, Fail},
	commitHangs: {Fail, Fail},
	deadLetters: {Fail, Fail},
	stopped:     {Fail, Fail},
	foreign:     {Fail, Fail},
	emptied:     {Fail, Fail},
	wrongTopic:  {Fail, Fail},
	leaderless:  {Fail, Fail},
	cannotWrite: {Fail, Fail},
	noQueue:     {Fail, Fail},
	queueStands: {Fail, Fail},

	// Nobody should go on sale like this.
	tight:       {Warn, Fail},
	rewriteFail: {Warn, Fail},
	noAOF:       {Warn, Fail},
	syncNever:   {Warn, Fail},
	startsEmpty: {Warn, Fail},
	startsOld:   {Warn, Fail},
	splitBrain:  {Warn, Fail},
	lostReplica: {Warn, Fail},
	behind:      {Warn, Fail},
	halfFull:    {Warn, Fail},
	noTimeout:   {Warn, Fail},
	owns:        {Warn, Fail},
	noWorker:    {Warn, Fail},
	partIdle:    {Warn, Fail},
	noAnswer:    {Warn, Fail},
	skewed:      {Warn, Fail},
	commitLoses: {OK, Fail},

	// Worth a thought.
	crowded:       {Warn, Warn},
	hookFails:     {Warn, Warn},
	refundRefused: {Warn, Warn},
	allOrNone:     {Warn, Warn},
	mixed:         {Warn, Warn},
	otherLimits:   {Warn, Warn},
	newerSchema:   {Warn, Warn},
	noCeiling:     {OK, Warn},
	slowQueue:     {OK, Warn},
	noTopicYet:    {OK, Warn},
	syncSecond:    {OK, Warn},
	syncLate:      {OK, Warn},
	oneCopy:       {OK, Warn},
	asynchronous:  {OK, Warn},
	pollsOnly:     {OK, OK},
}

func (f finding) in(p Profile) Result {
	if p == Production {
		return levels[f][1]
	}
	return levels[f][0]
}
