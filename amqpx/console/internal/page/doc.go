// Package page is the console as people see it: what waits, what is wrong, and the forms
// that change it. Every page is one level below where the console is mounted, so that
// relative links hold under any prefix, and works without JavaScript. The package knows
// what a reader sees, and reads no database and no broker.
//
// The handler in front of it puts a service.Caller into the request's context, and compares
// the form token of every POST with the caller's.
//
//   - page.go: which pages there are; request.go: requests, answers, and forms; service.go: what they need
//     of the service
//   - render.go: templates, assets, and how values are shown
//   - problem.go: what an error means to a reader; login.go: the login and preferences
//   - now.go: the first page, made of verdict.go, histogram.go, ended.go and the clock of
//     layouts.go, which are pure; live.go: its events
//   - tasks.go, task.go: lists and their filters, one task, a new one
//   - bulk.go: how tasks can be changed, and many at once, as they were counted and confirmed
//   - recurring.go, held.go, dead.go, layouts.go, audit.go: the other pages; dead.go also finds
//     messages, and audit.go has the jobs
//
// What holds for every page:
//
//   - Templates, one style sheet and one script are embedded, without a build step.
//   - Ids may have any characters. They are in queries, and in a form's address rather than its
//     fields, whose newlines would change on their way.
//   - What changes something asks by GET and acts by POST at the same address, and GET fills the
//     form from the query. So a form whose session has ended is filled in again after the login,
//     and a link can carry a form.
//   - What changes many things carries a digest of what was counted: the fields as they were
//     typed, their time zone, and the instant that a local time meant. A form that is sent with
//     anything else is counted again.
//   - Drawings are SVG without text, stretched to the window. Labels are HTML beside them, which
//     stays readable on a telephone and at 400 %.
//   - Live updates are parts of pages as HTML by server-sent events, rendered once for all who
//     look at the same span or list. The script changes only what differs, so that nobody loses a
//     focus, a selection or an open detail.
package page
