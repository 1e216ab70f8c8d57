package naming

// HeaderPrefix is the prefix of the names of rabbitdelay's own headers.
const HeaderPrefix = "rabbitdelay-"

// Names of headers that the operator's program reads, too. Package header in amqpx/internal lists all names.
const (
	HeaderDestination = HeaderPrefix + "destination"
	HeaderLead        = HeaderPrefix + "lead"
	HeaderUnreadable  = HeaderPrefix + "unreadable"
)
