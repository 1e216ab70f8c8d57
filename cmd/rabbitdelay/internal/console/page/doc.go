// Package page implements the console's pages: what is waiting, what is wrong, and the forms to change it. Every page
// is one level below the path at which the console is mounted, so that relative links work under any prefix. All
// pages work without JavaScript. The package only presents data, and does not access a database or a broker.
//
// The handler in front of this package puts a service.Caller into the request's context, and compares the form token
// of every POST request with the caller's.
//
//   - page.go routes requests to pages. request.go defines requests, responses and forms. service.go declares the
//     methods of the service that the pages need.
//   - render.go contains the templates and assets, and formats values.
//   - language.go chooses the language of a page. texts_zh.go maps the English texts to Chinese ones.
//   - problem.go explains errors to users. login.go handles the login and the preferences.
//   - now.go is the first page. It combines verdict.go, histogram.go, ended.go and the clock of
//     layouts.go, which are pure functions. live.go sends its updates.
//   - tasks.go and task.go show lists with their filters, single tasks, and the form for a new task.
//   - bulk.go defines the changes of tasks, and changes many tasks together after they were counted and confirmed.
//   - download.go sends lists as CSV and JSON.
//   - recurring.go, held.go, dead.go, layouts.go and audit.go show the other pages. dead.go also finds messages, and
//     audit.go also shows the jobs.
//
// The following applies to every page:
//
//   - Templates, one style sheet and one script are embedded, without a build step.
//   - Ids may contain any character. They are in the query of an address rather than in the path or
//     in form fields, because browsers change newlines in form fields.
//   - A page that changes something asks with GET and acts on POST at the same address, and GET fills
//     in the form from the query. A form whose session has ended can therefore be filled in again
//     after the login, and a link can fill in a form.
//   - The form for a bulk change carries a digest of what was counted: the fields as they were typed, their time zone,
//     and the time that a local time meant. If a form is submitted with anything else, the page counts again.
//   - Drawings are SVG without text and stretch with the window. Their labels are HTML next to them,
//     which stays readable on a phone and at 400 % zoom.
//   - Every text is looked up in the language of the page, by the functions t, plural and say of templates and the
//     methods of language. Texts of other components are in elements such as bdi, or in ones with the attribute lang.
//   - Live updates are parts of pages, sent as HTML by server-sent events and rendered once for all
//     users who view the same span or list. The script changes only what differs, so that no user
//     loses the focus, a selection or an open detail.
package page
