package pictures

// message shows the queues and exchanges that a delay of 1 h 5 min passes.
func message() *canvas {
	c := newCanvas(330)
	c.text("h", 24, 34, "A delay of 1 h 5 min, in the default layout")
	c.text("mono", 24, 58, "routing key  clock.0.0.1.5.0.0.orders.expire")
	c.text("dim", 24, 78, "Months, days, hours, minutes, seconds and hundredths of a second. Each exchange matches one digit and skips zeros.")

	c.box(24, 104, 120, 60, "Send", "your service")
	c.arrow("wire", 144, 134, 196, 134)
	c.box(198, 104, 180, 60, "delay.bucket.1h", "queue, waits 1 hour")
	c.arrow("wire", 378, 134, 440, 134)
	c.text("m dim", 409, 126, "TTL")
	c.box(442, 104, 184, 60, "delay.bucket.level-2", "reads the minutes")
	c.arrow("wire", 626, 134, 658, 134)
	c.box(660, 104, 176, 60, "delay.bucket.5m", "queue, waits 5 minutes")

	c.arrow("wire", 748, 164, 748, 206)
	c.text("dim", 758, 190, "TTL")
	c.box(660, 208, 176, 60, "delay.bucket.level-1", "only zeros are left")
	c.arrow("wire", 660, 238, 628, 238)
	c.box(442, 208, 184, 60, "delay.deliver", "topic exchange")
	c.arrow("wire", 442, 238, 380, 238)
	c.box(198, 208, 180, 60, "orders.expire", "destination queue")
	c.arrow("wire", 198, 238, 146, 238)
	c.box(24, 208, 120, 60, "Handler", "your service")
	c.text("dim", 24, 304, "All queues are ordinary ones with one TTL each, so no message waits behind another that is due later.")
	return c
}

// states shows the states of a row in rabbitdelay_tasks, and what leads from one to another.
func states() *canvas {
	c := newCanvas(404)
	c.box(36, 160, 150, 64, "pending", "the row exists")
	c.text("m dim", 111, 116, "schedule")
	c.arrow("wire", 111, 122, 111, 158)
	c.line("wire", 90, 224, 90, 268, 142, 268)
	c.arrow("wire", 142, 268, 142, 226)
	c.lines("dim", 66, 288, "reschedule, run now,", "retry after an error")

	c.box(340, 160, 150, 64, "running", "under a lease")
	c.arrow("wire", 186, 180, 338, 180)
	c.text("m dim", 262, 172, "lease taken")
	c.arrow("wire", 340, 206, 188, 206)
	c.text("m dim", 262, 222, "attempt failed")

	c.box(640, 20, 184, 64, "done", "the effect is committed")
	c.box(640, 118, 184, 64, "failed", "no attempt is left")
	c.box(640, 216, 184, 64, "cancelled", "no effect")
	c.box(640, 314, 184, 64, "expired", "too late, no effect")

	c.line("wire", 50, 160, 50, 52)
	c.arrow("wire", 50, 52, 638, 52)
	c.text("dim", 66, 44, "the handler's transaction commits")
	c.line("wire", 440, 160, 440, 66)
	c.arrow("wire", 440, 66, 638, 66)
	c.text("dim", 450, 84, "complete commits")
	c.line("wire", 490, 192, 560, 192, 560, 168)
	c.arrow("wire", 560, 168, 638, 168)
	c.text("dim", 500, 210, "last attempt failed")
	c.line("wire", 170, 160, 170, 140)
	c.arrow("wire", 170, 140, 638, 140)
	c.text("dim", 450, 133, "last attempt failed")
	c.line("wire dashed", 640, 126, 610, 126, 610, 104, 150, 104)
	c.arrow("wire dashed", 150, 104, 150, 158)
	c.text("dim", 240, 98, "revive")
	c.line("wire", 170, 224, 170, 244)
	c.arrow("wire", 170, 244, 638, 244)
	c.text("dim", 262, 260, "cancel")
	c.line("wire", 50, 224, 50, 346)
	c.arrow("wire", 50, 346, 638, 346)
	c.text("dim", 262, 338, "expires_after has passed")
	c.text("dim", 36, 386, "Finished rows are deleted after 7 days, failed ones after 30.")
	return c
}

// where shows the processes of a deployment and what they exchange.
func where() *canvas {
	c := newCanvas(444)
	c.frame(24, 20, 190, "Your service")
	c.box(44, 56, 140, 58, "amqpx", "Send")
	c.box(194, 56, 140, 58, "schedule", "writes tasks")
	c.box(44, 134, 140, 58, "Handlers", "effects, once")
	c.box(194, 134, 140, 58, "Relay", "sends due tasks")

	c.frame(506, 20, 190, "RabbitMQ, without a plugin")
	c.box(526, 56, 140, 58, "Delay queues", "283 by default")
	c.box(676, 56, 140, 58, "Destinations", "your queues")
	c.box(526, 134, 140, 58, "Parked", "destination gone")
	c.box(676, 134, 140, 58, "Dead letters", "no attempt left")

	c.arrow("wire", 354, 78, 504, 78)
	c.text("m dim", 430, 70, "delayed messages")
	c.arrow("wire", 506, 158, 356, 158)
	c.text("m dim", 430, 150, "due messages")

	c.frame(24, 276, 118, "Your database")
	c.box(44, 312, 140, 62, "Your tables", "orders, …")
	c.box(194, 312, 140, 62, "Tasks", "the truth")
	c.arrow("wire", 114, 210, 114, 274)
	c.text("dim", 124, 238, "one transaction")
	c.arrow("wire", 264, 274, 264, 212)
	c.text("dim", 274, 254, "due tasks")

	c.frame(506, 276, 118, "rabbitdelay serve, optional")
	c.box(526, 312, 140, 62, "Console, API", "metrics, probes")
	c.box(676, 312, 140, 62, "Relay", "for any language")
	c.arrow("wire", 506, 343, 356, 343)
	c.text("m dim", 430, 335, "reads and writes tasks")
	c.arrow("wire", 746, 276, 746, 212)
	c.text("e dim", 736, 248, "sends due tasks")
	c.text("dim", 24, 424, "Any number of processes of each kind. Other languages write tasks by SQL or HTTP. Messages alone need no database.")
	return c
}

// failure shows two deaths of a consumer: before and after its commit.
func failure() *canvas {
	c := newCanvas(520)
	for _, lane := range []struct {
		x       float64
		heading string
	}{{110, "Queue"}, {330, "Consumer A"}, {550, "Database"}, {760, "Consumer B"}} {
		c.line("grid", lane.x, 66, lane.x, 500)
		c.box(lane.x-65, 30, 130, 36, lane.heading)
	}
	step := func(class string, from, to, y float64, text string) {
		gap := 4 * sign(to-from)
		c.arrow("line "+class, from+gap, y, to-gap, y)
		// The text is over the part of the line that is next to its start, between two lanes.
		near := from + 110*sign(to-from)
		if d := (to - from) * sign(to-from); d < 230 {
			near = (from + to) / 2
		}
		c.text("m dim", near, y-7, text)
	}
	c.text("h", 122, 92, "A dies before its commit")
	step("a", 110, 330, 122, "delivers")
	step("a", 330, 550, 146, "effect and record")
	cross(c, 330, 166)
	c.text("bad", 342, 171, "killed")
	c.text("e dim", 542, 196, "no commit: rolled back")
	step("a", 110, 760, 222, "delivers again")
	step("a", 760, 550, 246, "effect and record")
	step("c", 760, 550, 270, "commits")
	step("c", 760, 110, 294, "acknowledges")

	c.line("grid", 24, 314, 836, 314)
	c.text("h", 122, 340, "A dies after its commit")
	step("a", 110, 330, 370, "delivers")
	step("c", 330, 550, 394, "commits effect, record")
	cross(c, 330, 414)
	c.text("bad", 342, 419, "killed before its ack")
	step("a", 110, 760, 444, "delivers again")
	step("a", 550, 760, 466, "the record is there")
	step("c", 760, 110, 490, "acknowledges, no work")
	return c
}

// cross marks the end of a process.
func cross(c *canvas, x, y float64) {
	c.line("line bad", x-6, y-6, x+6, y+6)
	c.line("line bad", x-6, y+6, x+6, y-6)
}
