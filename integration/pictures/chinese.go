package pictures

import (
	"html"
	"regexp"
	"slices"
	"strings"
)

// chinese has the pictures that the Chinese documents show, with translations of their labels, titles and descriptions.
// Names that are the same in both languages are in unchanged. The translation of NAME.svg is NAME.zh-CN.svg.
var chinese = map[string]map[string]string{
	"how.svg": {
		"A delayed message and a rescheduled task": "延时消息与改期的任务",
		"A message with a delay of 1 minute 30 seconds waits in the one-minute queue, then in the 30-second queue, and is delivered. A task is rescheduled while its message waits: the old message has no effect, and the new message has the effect.": "一条延时 1 分 30 秒的消息先在一分钟的队列里等待，再在 30 秒的队列里等待，然后投递。任务在消息等待期间改期：旧消息不生效，新消息生效。",
		"A message in 1m30s": "1m30s 后的消息",
		"your service":       "你的服务",
		"waits 60 s":         "等待 60 s",
		"60 s of 60":         "60 s / 60",
		"waits 30 s":         "等待 30 s",
		"30 s of 30":         "30 s / 30",
		"✓ at 1m30s":         "✓ 1m30s 时",
		"your handler":       "你的处理函数",
		"A task that is rescheduled in your transaction": "在你的事务里改期的任务",
		"your database":              "你的数据库",
		"the row is the truth":       "以行为准",
		"due 10:30, version 1":       "10:30 到期，版本 1",
		"due 11:00, version 2":       "11:00 到期，版本 2",
		"delay queues":               "延迟队列",
		"the broker is only a timer": "broker 只负责计时",
		"version 1: no effect":       "版本 1：不生效",
		"✓ once, at 11:00":           "✓ 11:00，一次",
		"checks the version":         "核对版本",
		"No message waits behind another, because each queue holds one delay. The broker keeps messages on disk and": "每个队列只有一种延迟，所以没有消息会挡住别的消息。broker 把消息存在磁盘上，",
		"delivers them at least once; your transaction makes the effect happen once.":                                "至少投递一次；你的事务保证效果只发生一次。",
	},

	"where.svg": {
		"What runs where": "各部分在哪里运行",
		"Your service has the client, the relay and the handlers. The database has the tasks, RabbitMQ the delay queues, and rabbitdelay serve the console, the API and another relay.": "你的服务里有客户端、relay 和处理函数；数据库里有任务，RabbitMQ 里有延迟队列；rabbitdelay serve 有控制台、API 和另一个 relay。",
		"Your service":                "你的服务",
		"writes tasks":                "写任务",
		"Handlers":                    "处理函数",
		"effects, once":               "效果只发生一次",
		"sends due tasks":             "发送到期任务",
		"RabbitMQ, without a plugin":  "RabbitMQ，不装插件",
		"Delay queues":                "延迟队列",
		"283 by default":              "默认 283 个",
		"Destinations":                "投递目标",
		"your queues":                 "你的队列",
		"Parked":                      "滞留",
		"destination gone":            "目标不存在",
		"Dead letters":                "死信",
		"no attempt left":             "重试耗尽",
		"delayed messages":            "延时消息",
		"due messages":                "到期消息",
		"Your database":               "你的数据库",
		"Your tables":                 "业务表",
		"orders, …":                   "订单等",
		"Tasks":                       "任务",
		"the truth":                   "以此为准",
		"one transaction":             "同一个事务",
		"due tasks":                   "到期任务",
		"rabbitdelay serve, optional": "rabbitdelay serve（可选）",
		"Console, API":                "控制台、API",
		"metrics, probes":             "指标、探针",
		"for any language":            "供任何语言使用",
		"reads and writes tasks":      "读写任务",
		"Any number of processes of each kind. Other languages write tasks by SQL or HTTP. Messages alone need no database.": "每种进程的数量不限。其他语言用 SQL 或 HTTP 写任务。只用消息则不需要数据库。",
	},

	"task-states.svg": {
		"The states of a task": "任务的状态",
		"A task is pending until its handler commits, which makes it done. It becomes cancelled, expired or failed instead. A failed task can be revived. Under a lease it is running between two transactions.": "任务先处于 pending 状态；处理函数提交后变为 done，否则变为 cancelled、expired 或 failed。failed 的任务可以恢复。持有租约时，任务在两个事务之间处于 running 状态。",
		"the row exists":                    "行已存在",
		"schedule":                          "新建",
		"reschedule, run now,":              "改期、立即执行、",
		"retry after an error":              "出错后重试",
		"under a lease":                     "持有租约",
		"lease taken":                       "取得租约",
		"attempt failed":                    "本次失败",
		"the effect is committed":           "效果已提交",
		"no attempt is left":                "重试耗尽",
		"no effect":                         "不生效",
		"too late, no effect":               "已过期，不生效",
		"the handler's transaction commits": "处理函数的事务提交",
		"complete commits":                  "complete 提交",
		"last attempt failed":               "最后一次失败",
		"revive":                            "恢复",
		"cancel":                            "取消",
		"expires_after has passed":          "超过 expires_after",
		"Finished rows are deleted after 7 days, failed ones after 30.": "已结束的行 7 天后删除，失败的 30 天后删除。",
	},
}

// unchanged has the names of programs, packages, functions, queues and states.
var unchanged = strings.Fields("1m 30s Send(1m30s) deliver order-42 orders.expire amqpx Send schedule Relay pending running done failed cancelled expired")

// captions matches the elements of a picture that contain text.
var captions = regexp.MustCompile(`(<(?:title|desc|text)\b[^>]*>)([^<]+)`)

// translate returns an SVG picture with translated labels, and the labels that have no translation.
func translate(svg string, labels map[string]string) (string, []string) {
	var missing []string
	translated := captions.ReplaceAllStringFunc(svg, func(element string) string {
		m := captions.FindStringSubmatch(element)
		label := html.UnescapeString(m[2])
		text, ok := labels[label]
		switch {
		case ok:
			return m[1] + html.EscapeString(text)
		case !slices.Contains(unchanged, label):
			missing = append(missing, label)
		}
		return element
	})
	return strings.Replace(translated, "<svg ", `<svg lang="zh-CN" `, 1), missing
}
