package pictures

// Picture is an SVG file of docs/images.
type Picture struct {
	Name string // file name without the folder
	SVG  string
}

// drawing is a picture before it becomes text.
type drawing struct {
	name, title, description string
	draw                     func() *canvas
}

// drawings lists all pictures that this package draws.
func drawings() []drawing {
	return append([]drawing{
		{"message.svg", "How a message travels", "A message with a delay of 1 h 5 min waits in the one-hour queue, then in the five-minute queue, and reaches the destination queue through the exchange delay.deliver.", message},
		{"task-states.svg", "The states of a task", "A task is pending until its handler commits, which makes it done. It becomes cancelled, expired or failed instead. A failed task can be revived. Under a lease it is running between two transactions.", states},
		{"where.svg", "What runs where", "Your service has the client, the relay and the handlers. The database has the tasks, RabbitMQ the delay queues, and rabbitdelay serve the console, the API and another relay.", where},
		{"failure.svg", "A message through a failure", "A consumer dies before its commit: the database rolls back and the broker delivers the message again. A consumer dies after its commit: the record shows that the message is done, and it is acknowledged without a second effect.", failure},
	}, plots()...)
}

// All draws every picture.
func All() []Picture {
	var all []Picture
	for _, d := range drawings() {
		all = append(all, Picture{Name: d.name, SVG: d.draw().svg(d.title, d.description)})
	}
	return all
}
